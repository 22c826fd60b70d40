from pathlib import Path

import pytest

from models.errors import DataError
from training.classes import build_taxonomy, output_key
from training.sources.record import PictureRecord


def record(name, **fields):
    return PictureRecord(path=Path("a.jpg"), original_name=name, original_id=name, **fields)


def test_outputs_are_sorted_by_key_whatever_the_order_of_the_pictures():
    records = [record(name) for name in ("Viola odorata", "Abies alba", "Rosa canina", "Abies alba")]
    keys = ("s:abies-alba", "s:rosa-canina", "s:viola-odorata")
    assert build_taxonomy("s", records).output_keys == build_taxonomy("s", records[::-1]).output_keys == keys


@pytest.mark.parametrize("name", ["Crocus", "Crocus sp.", "Crocus spp.", "Crocus  SPP"])
def test_a_name_that_stops_at_the_genus_is_a_taxon_of_that_rank(name):
    (taxon,) = build_taxonomy("s", [record(name)]).taxa
    assert (taxon.taxon_id, taxon.rank, taxon.scientific_name, taxon.genus) == ("crocus", "genus", "Crocus", "Crocus")


def test_the_genus_is_the_first_word_unless_the_source_says_otherwise():
    taxa = build_taxonomy("s", [record("Rosa canina"), record("Dog rose", genus="Rosa")]).taxa
    assert [taxon.genus for taxon in taxa] == ["Rosa", "Rosa"]


def test_the_family_comes_from_the_first_picture_that_has_one():
    records = [record("Rosa canina"), record("Rosa canina", family="Rosaceae", common_name="Dog rose")]
    (taxon,) = build_taxonomy("s", records).taxa
    assert (taxon.family, taxon.common_names) == ("Rosaceae", ("Dog rose",))


def test_a_name_without_latin_letters_is_refused_rather_than_merged_with_others():
    with pytest.raises(DataError, match=r"ромашка.*name its folder"):
        output_key("s", record("ромашка"))
