"""Taxa, outputs and names: several outputs can belong to one taxon, and names change without retraining."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from models.errors import DataError
from models.taxonomy import Groups, Output, Taxon, Taxonomy, fold, label_hash, taxon_id_from_name
from tests.models.tiny import CROCUS, DAISY, ROSE, TAXONOMY, genus_only, species, taxonomy_of

# ---- valid and invalid taxonomies


def test_duplicate_taxon_is_refused():
    with pytest.raises(DataError, match=r"duplicate taxon id \(got rosa-canina\)"):
        Taxonomy("1", (ROSE, DAISY, replace(DAISY, taxon_id="rosa-canina")), ())


def test_duplicate_output_is_refused():
    output = Output("a:rosa-canina", "a", "rosa-canina")
    with pytest.raises(DataError, match=r"duplicate output key \(got a:rosa-canina\)"):
        Taxonomy("1", (ROSE,), (output, replace(output, source="b")))


def test_output_of_an_unlisted_taxon_is_refused():
    with pytest.raises(DataError, match=r"the taxon of output 'a:oak' is not listed \(got quercus-robur\)"):
        Taxonomy("1", (ROSE,), (Output("a:oak", "a", "quercus-robur"),))


def test_taxonomy_can_be_written_and_read():
    content = msgspec.json.encode(TAXONOMY)
    again = msgspec.json.decode(content, type=Taxonomy)
    assert again == TAXONOMY
    assert again.label_hash == TAXONOMY.label_hash


@pytest.mark.parametrize("kind", ["taxonomy", "taxon", "output"])
def test_unknown_field_is_refused(kind):
    record = msgspec.to_builtins(TAXONOMY)
    target = {"taxonomy": record, "taxon": record["taxa"][0], "output": record["outputs"][0]}[kind]
    assert msgspec.convert(record, Taxonomy, strict=False) == TAXONOMY
    target["comon_names"] = []
    with pytest.raises(msgspec.ValidationError, match="unknown field `comon_names`"):
        msgspec.json.decode(msgspec.json.encode(record), type=Taxonomy)


@pytest.mark.parametrize("change", [{"taxon_id": ""}, {"scientific_name": ""}, {"rank": "family"}])
def test_taxon_with_an_empty_required_field_is_refused(change):
    record = msgspec.to_builtins(ROSE)
    assert msgspec.convert(record, Taxon) == ROSE
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(record | change, Taxon)


def test_only_a_taxon_of_rank_genus_needs_a_genus():
    assert species("Rosa canina").genus
    assert replace(ROSE, genus="").rank == "species"
    with pytest.raises(DataError, match="'crocus' of rank genus has no genus"):
        replace(CROCUS, genus="")
    with pytest.raises(DataError, match="no genus"):
        msgspec.convert(msgspec.to_builtins(CROCUS) | {"genus": ""}, Taxon)


# ---- outputs


def test_several_outputs_can_belong_to_one_taxon():
    assert TAXONOMY.output_keys == ("a:rosa-canina", "a:bellis-perennis", "b:bellis-perennis", "a:crocus")
    np.testing.assert_array_equal(TAXONOMY.taxon_of_output, [0, 1, 1, 2])


def test_taxa_can_be_in_any_order():
    turned = Taxonomy("1", TAXONOMY.taxa[::-1], TAXONOMY.outputs)
    np.testing.assert_array_equal(turned.taxon_of_output, [2, 1, 1, 0])


def test_label_hash_covers_the_ordered_keys_and_nothing_else():
    renamed = replace(ROSE, scientific_name="Rosa nova", synonyms=("Rosa canina",), common_names=(), family="")
    corrected = Taxonomy("2027-01", (DAISY, renamed, CROCUS), TAXONOMY.outputs)
    assert corrected.label_hash == TAXONOMY.label_hash
    reassigned = replace(TAXONOMY, outputs=tuple(replace(output, source="c") for output in TAXONOMY.outputs))
    assert reassigned.label_hash == TAXONOMY.label_hash
    assert replace(TAXONOMY, outputs=TAXONOMY.outputs[::-1]).label_hash != TAXONOMY.label_hash
    assert replace(TAXONOMY, outputs=TAXONOMY.outputs[:-1]).label_hash != TAXONOMY.label_hash


def test_label_hash_is_that_of_released_files():
    # printf 'a:x\nb:y\n' | sha256sum
    assert label_hash(["a:x", "b:y"]) == "fce6cae6115653fa8e3a28f15f9413060512d41ff5a6411796c615a4116c4332"


# ---- groups


def test_genera_and_families_partition_the_taxa():
    taxonomy = taxonomy_of(species("Rosa canina", "Rosaceae"), species("Malus alba", "Rosaceae"), genus_only("Rosa"))
    assert taxonomy.genera.names == ("Malus", "Rosa")
    np.testing.assert_array_equal(taxonomy.genera.of_taxon, [1, 0, 1])
    assert taxonomy.families.names == ("", "Rosaceae")
    np.testing.assert_array_equal(taxonomy.families.of_taxon, [1, 1, 0])


def test_groups_have_the_names_they_were_made_from():
    names = ["b", "a", "c", "a", ""]
    groups = Groups.of(names)
    assert [groups.names[index] for index in groups.of_taxon] == names
    assert groups.names == tuple(sorted(set(names)))


# ---- folding and taxon ids


def test_fold_removes_accents_case_and_spaces():
    assert fold("  Érable\tÀ  sucre ") == "erable a sucre"


@pytest.mark.parametrize(
    ("name", "taxon_id"),
    [
        ("Rosa canina", "rosa-canina"),
        ("Carex × alba", "carex-x-alba"),
        ("Mentha ×piperita", "mentha-x-piperita"),
        ("Mentha x piperita", "mentha-x-piperita"),
        ("×Cuprocyparis leylandii", "x-cuprocyparis-leylandii"),
        ("Isoëtes lacustris", "isoetes-lacustris"),
        ("Viola tricolor subsp. curtisii", "viola-tricolor-subsp-curtisii"),
        ("  Arum  maculatum. ", "arum-maculatum"),
    ],
)
def test_taxon_id_follows_from_the_name(name, taxon_id):
    assert taxon_id_from_name(name) == taxon_id
    assert taxon_id_from_name(taxon_id) == taxon_id
