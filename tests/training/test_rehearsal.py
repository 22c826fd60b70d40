"""Drawn plants in three published layouts, with added faults, is prepared and packed; every fault is reported."""

import json
from collections import Counter

import pytest

from tests.training.published_layouts import NUM_OUTPUTS, NUM_TAXA, write_published_layouts
from training.dataset.manifest import Manifest
from training.dataset.report.page import JSON_FILE
from training.loading.shards import Verify, verify
from training.prepare import Sources, prepare

pytestmark = pytest.mark.slow

# Fault -> the code under which a preparation reports it.
CODES = {
    "animal": "not_a_plant",
    "fungus": "not_a_plant",
    "truncated": "unreadable_image",
    "html_page": "unsupported_format",
    "text_file": "not_a_picture",
    "copy": "copy",
    "observation_split": "observation_split",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("rehearsal") / "flora"
    return write_published_layouts(out)


@pytest.fixture(scope="module")
def prepared(written):
    """One command: three layouts become a manifest, a report and shards."""
    folder = written.root.parent
    command = Sources(
        collection=written.collection, root=written.root, out=folder / "data", shards=folder / "packed", workers=1
    )
    prepare(command)
    return folder


@pytest.fixture(scope="module")
def report(prepared):
    return json.loads((prepared / "data" / JSON_FILE).read_text())


def faults_of(written, kind):
    found = [entry for entry in written.faults if entry.kind == kind]
    assert found, f"the data sets have no {kind}"
    return found


@pytest.mark.parametrize("kind", CODES)
def test_every_fault_is_left_out_with_its_reason(kind, written, report):
    listed = {entry["picture"]: entry["code"] for entry in report["left_out"]}
    for entry in faults_of(written, kind):
        assert listed[entry.picture] == CODES[kind]


def test_near_copies_are_listed_as_a_group_and_never_straddle_splits(written, report, prepared):
    manifest = Manifest(prepared / "data")
    splits = dict(zip(manifest.table["picture_id"].to_pylist(), manifest.table["split"].to_pylist(), strict=True))
    left_out = {entry["picture"] for entry in report["left_out"]}
    for entry in faults_of(written, "near_copy"):
        assert any({entry.picture, entry.original} <= set(group) for group in report["near_copies"])
        pair = {entry.picture, entry.original}
        assert pair & left_out or splits[entry.picture] == splits[entry.original]
    assert any(entry.picture in left_out for entry in faults_of(written, "near_copy"))


def test_a_species_written_twice_is_one_output_and_a_synonym_one_taxon(written, report, prepared):
    taxonomy = Manifest(prepared / "data").taxonomy
    assert len(taxonomy.outputs) == NUM_OUTPUTS
    assert len(taxonomy.taxa) == NUM_TAXA
    merged = Counter(row["explanation"] for row in report["names"]["merged"])
    assert any("one output" in text for text in merged)
    assert any("synonym" in text for text in merged)
    assert len(report["names"]["genus_level"]) >= len(faults_of(written, "genus_level"))


def test_outputs_of_one_taxon_are_summed_so_that_no_answer_names_it_twice(prepared):
    taxonomy = Manifest(prepared / "data").taxonomy
    of_output = taxonomy.taxon_of_output
    assert len(set(of_output.tolist())) == len(taxonomy.taxa) < len(of_output)


def test_what_was_packed_is_what_its_hashes_say(prepared):
    assert verify(Verify(data=prepared / "packed", workers=1)) == len(Manifest(prepared / "data"))


def test_a_second_run_decodes_nothing_and_writes_the_same(written, prepared, capsys):
    before = Manifest(prepared / "data").sha256
    prepare(Sources(collection=written.collection, root=written.root, out=prepared / "data", workers=1))
    assert Manifest(prepared / "data").sha256 == before
    assert "Decoding" not in capsys.readouterr().err
