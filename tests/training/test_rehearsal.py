"""Drawn plants in three published layouts, with added faults, is prepared and packed; every fault is reported."""

from types import SimpleNamespace

import msgspec
import pytest

from tests.training.loading.shards.prepared import require_hashes
from tests.training.published_layouts import NUM_OUTPUTS, NUM_TAXA, write_published_layouts
from training.dataset.manifest import Manifest
from training.prepare import Sources, prepare

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
def rehearsed(tmp_path_factory):
    """One command: three layouts become a manifest, a report and shards. Returns it, the report and the faults."""
    root = tmp_path_factory.mktemp("rehearsal")
    faults = write_published_layouts(root)
    command = Sources(
        collection=root / "collection.toml", root=root, out=root / "data", shards=root / "packed", workers=1
    )
    return SimpleNamespace(command=command, report=prepare(command), faults=faults, manifest=Manifest(command.out))


def faults_of(rehearsed, kind):
    found = [entry for entry in rehearsed.faults if entry.kind == kind]
    assert found, f"the data sets have no {kind}"
    return found


@pytest.mark.parametrize("kind", CODES)
def test_every_fault_is_left_out_with_its_reason(kind, rehearsed):
    listed = {entry.picture: entry.code for entry in rehearsed.report.left_out}
    for entry in faults_of(rehearsed, kind):
        assert listed[entry.picture] == CODES[kind]


def test_near_copies_are_listed_as_a_group_and_never_straddle_splits(rehearsed):
    table = rehearsed.manifest.table
    splits = dict(zip(table["picture_id"].to_pylist(), table["split"].to_pylist(), strict=True))
    left_out = {entry.picture for entry in rehearsed.report.left_out}
    for entry in faults_of(rehearsed, "near_copy"):
        pair = {entry.picture, entry.original}
        assert any(pair <= set(group) for group in rehearsed.report.near_copies)
        assert pair & left_out or splits[entry.picture] == splits[entry.original]
    assert any(entry.picture in left_out for entry in faults_of(rehearsed, "near_copy"))


def test_a_species_written_twice_is_one_output_and_a_synonym_one_taxon(rehearsed):
    taxonomy = rehearsed.manifest.taxonomy
    assert (len(taxonomy.outputs), len(taxonomy.taxa)) == (NUM_OUTPUTS, NUM_TAXA)
    assert rehearsed.report.names.joined
    assert any("synonym" in entry.explanation for entry in rehearsed.report.names.merged)
    assert len(rehearsed.report.names.genus_level) >= len(faults_of(rehearsed, "genus_level"))


def test_what_was_packed_is_what_its_hashes_say(rehearsed):
    packed = Manifest(rehearsed.command.shards)
    require_hashes(packed)
    assert len(packed) == len(rehearsed.manifest)


def test_a_second_run_decodes_nothing_and_writes_the_same(rehearsed, capsys):
    prepare(msgspec.structs.replace(rehearsed.command, shards=None))
    assert Manifest(rehearsed.command.out).sha256 == rehearsed.manifest.sha256
    assert "Decoding" not in capsys.readouterr().err
