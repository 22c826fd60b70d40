from hypothesis import given
from hypothesis import strategies as st

from models.taxonomy import Output, Taxon, Taxonomy
from training.comparison.names import name_changes

NAMES = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["Rosa alba", "Rosa rubra", "Rosa nova"]))


def taxonomy(names):
    taxa = tuple(Taxon(key, "species", name, "Rosa") for key, name in names.items())
    return Taxonomy("test", taxa, tuple(Output(f"a:{key}", "a", key) for key in names))


@given(NAMES, NAMES)
def test_every_taxon_is_added_removed_renamed_or_the_same(before, after):
    found = name_changes(taxonomy(before), taxonomy(after))
    assert len(found.added) == len(after.keys() - before.keys())
    assert len(found.removed) == len(before.keys() - after.keys())
    assert {(row.taxon_id, row.old, row.new) for row in found.renamed} == {
        (key, before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]
    }


@given(NAMES)
def test_same_taxa_in_another_order_are_no_change(names):
    found = name_changes(taxonomy(names), taxonomy(dict(reversed(names.items()))))
    assert (found.added, found.removed, found.renamed) == ((), (), ())
