import csv
import json
import sys

import pytest

from models.errors import DataError
from tests.training.small import require_one_line
from training.evaluate import Evaluate, evaluate, main
from training.judgment import Figures
from training.prepare import Folder, prepare


@pytest.fixture(scope="module")
def both(bundle, finished_run, data, tmp_path_factory):
    """Checkpoint and bundle judged on the test pictures, with everything written."""
    out = tmp_path_factory.mktemp("judged") / "report"
    subjects = {"checkpoint": finished_run / "last.pt", "bundle": bundle.folder}
    return evaluate(Evaluate(data=data, out=out, workers=0, **subjects)), out


def test_checkpoint_and_bundle_are_judged_alike(both, bundle):
    (checkpoint, sealed), _ = both
    assert (checkpoint.network, sealed.network) == ("checkpoint", "bundle")
    assert (checkpoint.temperature, sealed.temperature) == (1.0, bundle.network("fp32").temperature)
    assert checkpoint.all.top1_taxon == sealed.all.top1_taxon
    measured = {metric.name: metric.value for metric in bundle.record.metrics}
    assert sealed.all.nll == pytest.approx(measured["nll"], abs=1e-6)
    assert sealed.all.top1_taxon.value == measured["top1_taxon"]


def test_every_share_in_the_report_carries_its_number_and_interval(both):
    for name in ("checkpoint", "bundle"):
        report = json.loads((both[1] / f"{name}-test.json").read_text())
        assert report["split"] == "test"
        for figures in (report["all"], *report["by_source"].values()):
            assert set(figures) == set(Figures.__struct_fields__)
            for figure in ("top1_output", "top1_taxon", "top5_taxon", "macro_top1_taxon"):
                low, high = figures[figure]["interval_95"]
                assert 0 <= low <= figures[figure]["value"] <= high <= 1
                assert figures[figure]["num_pictures"] == 3


def test_the_tables_have_a_row_a_class_and_a_row_a_picture(both, manifest):
    classes, answers = (
        list(csv.DictReader((both[1] / f"bundle-test-{kind}.csv").read_text(encoding="utf-8").splitlines()))
        for kind in ("classes", "answers")
    )
    assert sorted(row["taxon_id"] for row in classes) == ["buttercup", "iris-caerulea", "rosa-rubra"]
    assert sum(int(row["num_pictures"]) for row in classes) == 3
    assert [row["picture"] for row in answers] == [manifest.name(int(row)) for row in manifest.rows_of("test")]
    right = sum(row["right_taxon_id"] == row["named_taxon_id"] for row in answers)
    assert right / 3 == pytest.approx(both[0][1].all.top1_taxon.value)
    assert all(0 < float(row["score"]) <= 1 for row in answers)


def test_the_figures_are_printed_and_the_two_are_compared(bundle, finished_run, data, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    evaluate(Evaluate(data=data, checkpoint=finished_run / "last.pt", bundle=bundle.folder, split="train", workers=0))
    printed = capsys.readouterr().out
    for text in (
        "checkpoint, train split",
        "bundle, train split",
        "top1_taxon",
        "of 30",
        "name the same taxon: 30 of 30",
    ):
        assert text in printed


def test_naming_nothing_to_judge_is_one_line(data, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--data", str(data)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    require_one_line(told, "bad_data")
    assert "--checkpoint FILE, --bundle DIR" in told


def test_data_with_other_outputs_is_refused(bundle, pictures, tmp_path):
    prepare(Folder(pictures=pictures, out=tmp_path / "other", source="other", workers=1))
    with pytest.raises(DataError, match="bundle and the data name different outputs"):
        evaluate(Evaluate(data=tmp_path / "other", bundle=bundle.folder, workers=0))
