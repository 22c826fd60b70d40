"""A network is measured with the manifest of its training, or with other data that is said to be other data."""

import re
import shutil
import warnings

import msgspec
import pytest

from models.errors import DataError
from training.dataset.manifest import Manifest
from training.engine.checkpoint import read_checkpoint
from training.evaluate import Evaluate, evaluate
from training.fit.provenance import OTHER_DATA, is_other_data
from training.loading.shards import Pack, pack

OTHER = "ab" * 32


@pytest.fixture(scope="module")
def packed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "data"
    pack(Pack(data=data, out=folder, workers=1))
    return folder


@pytest.fixture(scope="module")
def checkpoint(finished_run):
    return finished_run / "last.pt"


# ---- the rule


@pytest.mark.parametrize("allowed", [False, True])
def test_data_of_the_training_is_not_other_data(manifest, allowed):
    with warnings.catch_warnings(action="error"):
        assert not is_other_data(manifest, manifest.sha256, "checkpoint", allowed=allowed)


def test_other_data_is_refused_unless_it_is_allowed(manifest):
    with pytest.raises(DataError, match="the bundle was trained with other data") as caught:
        is_other_data(manifest, OTHER, "bundle", allowed=False)
    message = str(caught.value)
    assert f"got manifest {manifest.sha256[:12]} in {manifest.folder}; expected manifest {OTHER[:12]}" in message
    assert "--other-data" in caught.value.remedy
    assert is_other_data(manifest, OTHER, "bundle", allowed=True)


@pytest.mark.parametrize("allowed", [False, True])
def test_network_that_does_not_say_its_data_gets_a_warning(manifest, allowed):
    with pytest.warns(UserWarning, match="the checkpoint does not say with which data it was trained"):
        assert is_other_data(manifest, "", "checkpoint", allowed=allowed) == allowed


def test_packing_and_moving_do_not_make_other_data(data, packed, tmp_path):
    moved = shutil.copytree(packed, tmp_path / "elsewhere")
    before, after = Manifest(data), Manifest(moved)
    assert before.sha256 == after.packed_from != after.sha256
    for trained_with in (before.sha256, after.sha256):
        assert not is_other_data(after, trained_with, "checkpoint", allowed=False)


def test_checkpoint_knows_the_manifest_and_the_commit_that_trained_it(checkpoint, manifest):
    trained = read_checkpoint(checkpoint)
    assert trained.trained_with == trained.manifest_sha256 == manifest.sha256
    assert re.fullmatch(r"unknown|[0-9a-f]{40}\+?", trained.git_commit)


# ---- evaluate


@pytest.mark.parametrize("of_bundle", [False, True], ids=["checkpoint", "bundle"])
def test_evaluating_with_another_data_is_refused(checkpoint, bundle, other_data, of_bundle):
    subject = {"bundle": bundle.folder} if of_bundle else {"checkpoint": checkpoint}
    with pytest.raises(DataError, match="was trained with other data"):
        evaluate(Evaluate(data=other_data, workers=0, **subject))


def test_every_file_and_table_of_an_evaluation_says_that_it_is_other_data(
    checkpoint, bundle, other_data, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    command = Evaluate(data=other_data, checkpoint=checkpoint, bundle=bundle.folder, other_data=True, workers=0)
    found = evaluate(msgspec.structs.replace(command, out=tmp_path))
    assert [evaluation.other_data for evaluation in found] == [True, True]
    assert capsys.readouterr().out.count(f"test split ({OTHER_DATA})") == 2
    reports = [*tmp_path.iterdir()]
    assert {"checkpoint-test-other-data.json", "bundle-test-other-data-classes.csv"} <= {path.name for path in reports}
    assert all("-test-other-data" in path.name for path in reports)
    assert msgspec.json.decode((tmp_path / "bundle-test-other-data.json").read_bytes())["other_data"] is True


def test_evaluating_with_packed_data_is_evaluating_with_the_same_data(checkpoint, bundle, packed):
    found = evaluate(Evaluate(data=packed, checkpoint=checkpoint, bundle=bundle.folder, workers=0, other_data=True))
    assert [evaluation.other_data for evaluation in found] == [False, False]


# ---- export


def test_bundle_records_who_trained_it_and_with_what(bundle, checkpoint, manifest):
    record, trained = bundle.record, read_checkpoint(checkpoint)
    assert (record.manifest_sha256, record.other_data) == (manifest.sha256, False)
    assert record.trained_commit == trained.git_commit
    card = (bundle.folder / "MODEL_CARD.md").read_text()
    assert f"Trained with the manifest {manifest.sha256}" in card
    assert f"at commit {trained.git_commit}, exported at commit {record.git_commit}." in card
    assert "The metrics come from the same manifest." in card
    assert OTHER_DATA not in card


def test_every_figure_of_a_bundle_of_other_data_says_so(other_bundle, manifest):
    record = other_bundle.record
    assert (record.manifest_sha256, record.other_data) == (manifest.sha256, True)
    assert {metric.data for metric in record.metrics if "left_out" not in metric.name} == {
        f"data, test split ({OTHER_DATA})"
    }
    assert all(OTHER_DATA in source.note for source in record.sources)
    card = (other_bundle.folder / "MODEL_CARD.md").read_text()
    assert f"The metrics come from {OTHER_DATA}" in card
    figures = [line for line in card.splitlines() if "pictures)" in line]
    network = other_bundle.network("fp32")
    assert len(figures) == len(record.metrics) + len(network.checks) + len(network.coverages)
    assert all(OTHER_DATA in line for line in figures)


def test_bundle_names_one_input_size_and_that_is_the_served_one(checkpoint, other_bundle):
    assert (other_bundle.record.input.height, other_bundle.record.input.width) == (40, 40)
    assert other_bundle.record.recipe["pictures"]["serve_px"] == 40
    assert read_checkpoint(checkpoint).recipe["pictures"]["serve_px"] != 40
    assert "Served with pictures of 40 x 40 px" in (other_bundle.folder / "MODEL_CARD.md").read_text()
