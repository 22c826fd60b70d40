"""Names of taxa: whole names and their kinds, the start of a word, and several names at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.taxonomy import NameMatch, TaxonNames, fold_name
from tests.models.tiny import common_only, genus_only, species, taxonomy_of

GARDEN = TaxonNames(
    taxonomy_of(
        species("Rosa rugosa", "Rosaceae", common_names=("Japanese rose", "Kartoffel-Rose")),
        species("Isoëtes lacustris", "Isoetaceae", common_names=("lake quillwort",)),
        species("Acer platanoides", "", synonyms=("Acer laciniatum",), common_names=("Érable plane", "Straße")),
        species("Primula veris"),
        species("Rosa × alba", "Rosaceae", common_names=("Jacob’s rose",)),
        genus_only("Rosa", "Rosaceae"),
        species("Pelargonium zonale", "Geraniaceae", common_names=("geranium", "stork's bill")),
        species("Geranium robertianum", "Geraniaceae", synonyms=("Robertium vulgare",)),
        species("Erodium cicutarium", "Geraniaceae", synonyms=("Geranium acaule",), common_names=("Stork's Bill",)),
    )
)  # fmt: skip
NAMES = [taxon.scientific_name for taxon in GARDEN.taxonomy.taxa]


def found(text, **options):
    return [each.taxon.scientific_name for each in GARDEN.search(text, **options)]


def meaning(text):
    known = GARDEN.find(text)
    return None if known is None else (known.match.kind, known.match.name, [NAMES[index] for index in known.taxa])


# ---- whole names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Primula veris", ("accepted", "Primula veris", ["Primula veris"])),
        ("rosa", ("genus", "Rosa", ["Rosa rugosa", "Rosa × alba", "Rosa"])),
        ("ROSACEAE", ("family", "Rosaceae", ["Rosa rugosa", "Rosa × alba", "Rosa"])),
        ("Robertium vulgare", ("synonym", "Robertium vulgare", ["Geranium robertianum"])),
        ("japanese  Rose", ("common", "Japanese rose", ["Rosa rugosa"])),
        ("stork's bill", ("common", "stork's bill", ["Pelargonium zonale", "Erodium cicutarium"])),
    ],
)
def test_whole_name_means_all_its_taxa(text, expected):
    assert meaning(text) == expected


@pytest.mark.parametrize("text", ["Primula", "primula ver", "veris", "rose", "Rosac", "", "  ", "zzz"])
def test_part_of_a_name_means_nothing_unless_it_is_a_genus(text):
    assert meaning(text) == (("genus", "Primula", ["Primula veris"]) if text == "Primula" else None)


def test_genus_precedes_a_common_name():
    assert meaning("Geranium") == ("genus", "Geranium", ["Geranium robertianum"])


@pytest.mark.parametrize(
    "text", ["Rosa × alba", "rosa x alba", "Rosa ×alba", "ROSA X ALBA", "rosa alba", "× Rosa alba"]
)
def test_hybrid_sign_does_not_matter(text):
    assert meaning(text) == ("accepted", "Rosa × alba", ["Rosa × alba"])


@pytest.mark.parametrize(
    "text", ["Jacob's rose", "jacob’s  ROSE", "isoetes lacustris", "ISOËTES LACUSTRIS", "erable plane"]
)
def test_case_accents_spaces_and_apostrophes_do_not_matter(text):
    assert meaning(text) is not None


@given(st.text())
def test_folding_twice_is_folding_once(text):
    assert fold_name(fold_name(text)) == fold_name(text)


@given(st.sampled_from([name for taxon in GARDEN.taxonomy.taxa for name in (taxon.scientific_name, *taxon.synonyms)]))
def test_every_scientific_name_is_found_and_begins_with_itself(name):
    known = GARDEN.find(name)
    assert known is not None
    assert {NAMES[index] for index in known.taxa} <= set(found(name))


# ---- several names


def test_choice_holds_the_taxa_of_all_names_and_the_names_that_mean_nothing():
    choice = GARDEN.choose(["Primula", "oak", "japanese rose", "Quercus robur", "oak"])
    assert [NAMES[index] for index in np.flatnonzero(choice.chosen_T)] == ["Rosa rugosa", "Primula veris"]
    assert choice.unknown == ("oak", "Quercus robur")


@given(st.lists(st.sampled_from([*NAMES, "Rosaceae", "geranium", "oak"])), st.randoms())
def test_order_and_repetition_of_names_do_not_matter(names, random):
    shuffled = random.sample(names, len(names)) + names[:2]
    np.testing.assert_array_equal(GARDEN.choose(names).chosen_T, GARDEN.choose(shuffled).chosen_T)


@given(st.lists(st.text()))
def test_any_names_are_accepted(names):
    choice = GARDEN.choose(names)
    assert choice.chosen_T.any() == (len(choice.unknown) < len(set(names)))


def test_taxa_without_a_genus_are_found_by_their_name_alone():
    names = TaxonNames(taxonomy_of(common_only("Common wheat"), common_only("Maize")))
    assert names.find("maize").match == NameMatch("accepted", "Maize")
    assert names.find("") is None
    assert [entry.taxon.scientific_name for entry in names.search("")] == ["Common wheat", "Maize"]


# ---- search


@pytest.mark.parametrize("query", ["rug", "Rosa rug", "ROSA  RUGOSA ", "japanese", "kartoffel"])
def test_search_finds_the_start_of_any_word(query):
    assert found(query) == ["Rosa rugosa"]


@pytest.mark.parametrize("query", ["ugosa", "osa", "rosa rugosa x y", "zzz"])
def test_search_finds_nothing_inside_a_word(query):
    assert found(query) == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("isoetes", "Isoëtes lacustris"),
        ("ISOËTES", "Isoëtes lacustris"),
        ("isoe\u0308t", "Isoëtes lacustris"),
        ("erable", "Acer platanoides"),
        ("strasse", "Acer platanoides"),
        ("laciniatum", "Acer platanoides"),
        ("quillwort", "Isoëtes lacustris"),
    ],
)
def test_search_ignores_accents_and_case_and_includes_other_names(query, name):
    assert found(query) == [name]


def test_empty_search_returns_everything_by_name():
    everything = sorted(NAMES)
    assert found("") == found("  ") == everything
    assert found("", limit=2) == everything[:2]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", None),
        ("prim", NameMatch("prefix", "Primula veris")),
        ("primula", NameMatch("genus", "Primula")),
        ("isoetac", NameMatch("prefix", "Isoetaceae")),
        ("rose", NameMatch("prefix", "Japanese rose")),
        ("acer laciniatum", NameMatch("synonym", "Acer laciniatum")),
        ("acer lac", NameMatch("prefix", "Acer laciniatum")),
        ("STRASSE", NameMatch("common", "Straße")),
    ],
)
def test_search_says_why_a_taxon_was_found(text, match):
    assert match in {each.match for each in GARDEN.search(text)}
