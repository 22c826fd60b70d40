"""How look-alikes are told apart."""

from models.differences import _by_name, differences
from tests.models.tiny import species


def told(*names):
    return {(each.one, each.other): each for each in differences([species(name) for name in names])}


def test_each_pair_stands_once_with_two_short_lines_and_its_source():
    rows = [row for found in _by_name().values() for row in found]
    assert len(rows) == 2 * len({frozenset((row.one, row.other)) for row in rows}) > 100
    for row in rows:
        assert row.one != row.other
        assert 5 < len(row.line_one) <= 90, row
        assert len(row.source) > 10, row


def test_taxa_are_told_from_each_other_in_the_order_of_the_answer():
    found = told("Toxicodendron radicans", "Rosa canina", "Acer negundo")
    ivy = found["Toxicodendron radicans", "Acer negundo"]
    assert ivy.line_one.startswith("leaves of three leaflets")
    assert ivy.line_other.startswith("leaves stand in opposite pairs")
    assert not any({"Rosa canina"} & {*pair} for pair in found)
    assert ("Acer negundo", "Toxicodendron radicans") not in found


def test_the_first_taxon_is_told_from_grave_doubles_that_the_model_does_not_know():
    found = told("Allium tricoccum", "Acer negundo")
    assert {other for _, other in found} == {"Convallaria majalis", "Veratrum viride"}
    assert {harm.severity for each in found.values() for harm in each.other_harms} == {"deadly"}


def test_the_row_of_a_genus_stands_for_its_species():
    assert told("Rosa canina", "Narcissus poeticus", "Allium cepa").keys() == {("Narcissus poeticus", "Allium cepa")}
