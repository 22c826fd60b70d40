"""Taxa, outputs and names: several outputs can belong to one taxon, and people write names in many ways."""

import time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from models.errors import DataError
from models.taxonomy import NameMatch, Output, Taxon, TaxonNames, Taxonomy, label_hash, taxon_id_from_name
from tests.make import cases, from_table
from tests.models.tiny import CROCUS, DAISY, ROSE, TAXONOMY, common_only, genus_only, species, taxonomy_of

# ---- valid and invalid taxonomies


def test_duplicate_taxon_is_refused():
    with pytest.raises(DataError, match=r"duplicate taxon id \(got rosa-canina\)"):
        Taxonomy("1", (ROSE, DAISY, replace(DAISY, taxon_id="rosa-canina")), ())


def test_duplicate_output_is_refused():
    output = Output("a:rosa-canina", "a", "rosa-canina")
    with pytest.raises(DataError, match=r"duplicate output key \(got a:rosa-canina\)"):
        Taxonomy("1", (ROSE,), (output, replace(output, source="b")))


def test_a_duplicate_among_many_is_found_at_once():
    taxa = [species(f"taxon{number}", "Rosa") for number in range(20_000)]
    start = time.process_time()
    with pytest.raises(DataError, match=r"duplicate taxon id \(got taxon19999\)"):
        Taxonomy("1", (*taxa, taxa[-1]), ())
    assert time.process_time() - start < 1  # comparing each with all before it takes 3


def test_output_of_an_unlisted_taxon_is_refused():
    with pytest.raises(DataError, match=r"the taxon of output 'a:oak' is not listed \(got quercus-robur\)"):
        Taxonomy("1", (ROSE,), (Output("a:oak", "a", "quercus-robur"),))


@pytest.mark.parametrize("kind", ["taxonomy", "taxon", "output"])
def test_unknown_field_is_refused(kind):
    record = msgspec.to_builtins(TAXONOMY)
    target = {"taxonomy": record, "taxon": record["taxa"][0], "output": record["outputs"][0]}[kind]
    assert msgspec.convert(record, Taxonomy, strict=False) == TAXONOMY
    target["comon_names"] = []
    with pytest.raises(msgspec.ValidationError, match="unknown field `comon_names`"):
        msgspec.json.decode(msgspec.json.encode(record), type=Taxonomy)


@from_table
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


# ---- folding and taxon ids


@from_table
def test_taxon_id_follows_from_the_name(name, taxon_id):
    assert taxon_id_from_name(name) == taxon_id
    assert taxon_id_from_name(taxon_id) == taxon_id


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
        species("Viola tricolor subsp. minima"),
        species("Mentha × rotata", "Lamiaceae"),
    )
)  # fmt: skip
NAMES = [taxon.scientific_name for taxon in GARDEN.taxonomy.taxa]


def found(text, **options):
    return [each.taxon.scientific_name for each in GARDEN.search(text, **options)]


def meaning(text):
    known = GARDEN.find(text)
    return [] if known is None else [known.match.kind, known.match.name, [NAMES[index] for index in known.taxa]]


# ---- whole names


@pytest.mark.parametrize(("text", "expected"), cases(__file__, "names_of_taxa"))
def test_a_whole_name_means_all_its_taxa_and_never_less_than_it_says(text, expected):
    assert meaning(text) == expected


def test_an_initial_stands_for_the_genus_of_one_taxon_only():
    plants = ("Hedera alba", "Hibiscus alba", "Hibiscus nigra", "Salix alba")
    names = TaxonNames(taxonomy_of(*map(species, plants)))
    assert names.find("H. alba") is names.find("S. sp.") is None
    assert names.find("H. nigra L.").match == NameMatch("accepted", "Hibiscus nigra")


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
    assert GARDEN.choose(["Rosa rugosa 'Alba'"]).below == {"Rosa rugosa 'Alba'": "Rosa rugosa"}


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


@from_table
def test_search_finds_the_start_of_any_word_of_any_name_without_accents_and_case(query, names):
    assert found(query) == [*names]


def test_empty_search_returns_everything_by_name():
    everything = sorted(NAMES)
    assert found("") == found("  ") == everything
    assert found("", limit=2) == everything[:2]


@from_table
def test_search_says_why_a_taxon_was_found(text, match):
    assert match in {each.match and (each.match.kind, each.match.name) for each in GARDEN.search(text)}
