import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.names import (
    genus_families,
    is_above_genus,
    may_be_latin,
    parse_name,
    similar_genera,
    split_class_name,
)
from tests.make import cases, from_table

with Path(__file__).with_name("spellings.csv").open(encoding="utf-8", newline="") as table:
    SPELLINGS = [tuple(row.values()) for row in csv.DictReader(table)]


@pytest.mark.parametrize(("text", "declared", "scientific_name", "key", "rank", "author"), SPELLINGS)
def test_a_name_is_read_as_the_table_says(text, declared, scientific_name, key, rank, author):
    name = parse_name(text, scientific=bool(declared))
    read_as = "common" if name.common else "above genus" if name.above_genus else name.rank
    assert (name.scientific_name, name.key, read_as, name.author) == (scientific_name, key, rank, author)


def test_two_folders_are_not_merged_because_part_of_a_name_was_not_parsed():
    names = [
        "class 1",
        "class 2",
        "Rosa (red)",
        "Rosa (white)",
        "Corn_(maize)___healthy",
        "Corn_(maize)___rust",
        "Rosa",
        "Brassica oleracea",
        "Brassica oleracea Capitata Group",
        "Brassica oleracea Italica Group",
    ]
    assert len({parse_name(name).key for name in names}) == len(names)


@pytest.mark.parametrize(
    "word", ["Cichorieae", "Heliantheae", "asteraceae", "Polypodiidae", "Magnolianae", "Compositae"]
)
def test_tribes_and_other_ranks_above_the_genus_are_told_from_genera(word):
    assert is_above_genus(word)


@pytest.mark.parametrize("word", ["Xerophyta", "Oreithales", "Aithales", "Danae", "Leucophyta", "Quercus", "Lobatae"])
def test_genera_with_the_ending_of_a_higher_rank_are_listed(word):
    assert not is_above_genus(word)


@pytest.mark.parametrize(("folder", "names"), cases(__file__, "class_names"))
def test_a_folder_name_is_split_into_both_names(folder, names):
    assert [*split_class_name(folder)] == names


def _words(text):
    return text.split()


ENGLISH_FIRST = _words(
    "Common Wild Sweet Black White Red Blue Green Yellow Golden Silver Garden Field Water Sea Giant Dwarf Great Lesser "
    "Small Tall Japanese Chinese English African European Indian Mexican Alpine Mountain Wood Marsh Sand Desert "
    "Weeping Prickly Hairy Woolly Bitter Sour Spring Summer Winter Early Double Purple Pink Orange Scarlet Crimson "
    "False Climbing Bearded Spotted Swamp Corn Dog Horse Cow Goose Spider Tiger Moon Sugar Butter Stone Cape "
    "California Carolina Virginia Boston Siberian Norway Devils"
)
ENGLISH_LAST = _words(
    "acacia aloe anemone arum aster banana begonia cactus clematis crocus dahlia geranium guava hibiscus iris lotus "
    "magnolia pea petunia plum tea viola wheat nettle rose lily bean clover grass pepper ginger onion melon lemon"
)


@given(st.sampled_from(ENGLISH_FIRST), st.sampled_from(ENGLISH_LAST))
def test_the_common_name_of_a_plant_is_not_latin_even_if_its_last_word_is(first, last):
    assert not may_be_latin(first, last)


@from_table
def test_further_common_names_are_not_latin(name):
    assert not may_be_latin(*name.split())


@from_table
def test_scientific_names_are_latin(name):
    assert may_be_latin(*name.split())


def test_a_genus_has_its_family():
    families = genus_families()
    assert (families["Quercus"], families["Poa"], families["Brassica"]) == ("Fagaceae", "Poaceae", "Brassicaceae")
    assert len(families) == 31_000
    assert all(family.endswith("aceae") for family in families.values())


@from_table
def test_a_misspelt_genus_gets_a_suggestion(written, meant):
    assert similar_genera(written) == [meant]


@pytest.mark.parametrize("written", ["Quercus", "Zzyzx", "Qercus3"])
def test_a_listed_an_unlike_and_a_generated_genus_get_none(written):
    assert similar_genera(written) == []
