import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from models.errors import DataError
from models.session import NetworkOutput
from tests.models.pictures import SPEC
from tests.training.small import prepare_folder, require_one_line, with_columns
from training.evaluate import Evaluate, Subject, evaluate, main
from training.fit.drawings import SHEETS
from training.loading.shards import Pack, pack


@pytest.fixture(scope="module")
def both(bundle, finished_run, data, tmp_path_factory):
    """Checkpoint and bundle evaluated on the test split, and the folder with all files."""
    out = tmp_path_factory.mktemp("evaluated") / "report"
    subjects = {"checkpoint": finished_run / "last.pt", "bundle": bundle.folder}
    return evaluate(Evaluate(data=data, out=out, workers=0, **subjects)), out


def test_checkpoint_and_bundle_have_the_same_metrics(both, bundle):
    (checkpoint, sealed), _ = both
    assert (checkpoint.subject.name, sealed.subject.name) == ("checkpoint", "bundle")
    assert (checkpoint.subject.temperature, sealed.subject.temperature) == (1.0, bundle.network("fp32").temperature)
    assert checkpoint.figures.all.top1_taxon == sealed.figures.all.top1_taxon
    measured = {metric.name: metric.value for metric in bundle.record.metrics}
    assert sealed.figures.all.nll == pytest.approx(measured["nll"], abs=1e-6)
    assert sealed.figures.all.top1_taxon.value == measured["top1_taxon"]


def test_the_answers_of_a_bundle_are_measured_on_things_and_unknown_plants_too(bundle, data, tmp_path, capsys):
    for number in range(6):
        Image.new("RGB", (40, 40), (40 * number, 90, 90)).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{split}" for number, split in enumerate(["fit"] * 2 + ["test"] * 4)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,split", *rows]))
    folders = {"negatives": tmp_path, "unknown": tmp_path}
    evaluate(Evaluate(data=data, bundle=bundle.folder, out=tmp_path / "report", workers=0, **folders))
    report = json.loads((tmp_path / "report" / "bundle-test-served.json").read_text())
    assert report["verdicts"]["num_pictures"] == 3
    assert len(report["candidates"]) == 6
    assert report["things"]["named"]["num_pictures"] == report["unknown"]["named"]["num_pictures"] == 4
    assert report["unknown"]["score"] == "familiarity"
    printed = capsys.readouterr().out
    for text in ("candidate sets, macro coverage 0.95", "other things: AUROC", "plants of unknown species: AUROC"):
        assert text in printed


def test_the_tables_have_a_row_for_each_class_and_each_picture(both, manifest):
    classes, answers = (
        list(csv.DictReader((both[1] / f"bundle-test-{kind}.csv").read_text(encoding="utf-8").splitlines()))
        for kind in ("classes", "answers")
    )
    assert sorted(row["taxon_id"] for row in classes) == ["buttercup", "iris-caerulea", "rosa-rubra"]
    assert sum(int(row["num_pictures"]) for row in classes) == 3
    assert [row["picture"] for row in answers] == [manifest.name(int(row)) for row in manifest.rows_of("test")]
    right = sum(row["right_taxon_id"] == row["named_taxon_id"] for row in answers)
    assert right / 3 == pytest.approx(both[0][1].figures.all.top1_taxon.value)
    assert all(0 < float(row["score"]) <= 1 for row in answers)


def test_mistakes_are_written_with_the_report(both, manifest):
    evaluations, out = both
    wrong = [evaluation.subject.name for evaluation in evaluations if evaluation.figures.all.top1_taxon.value < 1]
    expected = {f"{network}-test-{sheet}" for network in wrong for sheet in SHEETS}
    pictures = {path.name for path in out.iterdir()} - {
        f"{network}-test{ending}"
        for network in ("checkpoint", "bundle")
        for ending in (".json", "-classes.csv", "-answers.csv", "-served.json")
    }
    assert pictures == expected
    for name in expected:
        with Image.open(out / name) as picture:
            assert min(picture.size) > 200


def test_sheets_of_an_earlier_evaluation_are_removed(finished_run, data, tmp_path, monkeypatch):
    (tmp_path / "checkpoint-test-confusions.jpg").write_bytes(b"old")
    monkeypatch.setattr("training.fit.drawings.draw_mistakes", lambda *arguments: {"surest-mistakes.jpg": b"new"})
    evaluate(Evaluate(data=data, checkpoint=finished_run / "last.pt", out=tmp_path, workers=0))
    assert not (tmp_path / "checkpoint-test-confusions.jpg").exists()
    assert (tmp_path / "checkpoint-test-surest-mistakes.jpg").read_bytes() == b"new"


def test_shards_may_lie_elsewhere(finished_run, data, tmp_path):
    packed, elsewhere = tmp_path / "packed", tmp_path / "elsewhere"
    pack(Pack(data=data, out=packed, workers=1))
    elsewhere.mkdir()
    for shard in packed.glob("*.tar"):
        shard.rename(elsewhere / shard.name)
    command = Evaluate(data=packed, checkpoint=finished_run / "last.pt", workers=0)
    with pytest.raises(DataError, match="cannot be read"):
        evaluate(command)
    (evaluation,) = evaluate(replace(command, shards=str(elsewhere)))
    assert evaluation.figures.all.top1_taxon.num_pictures == 3


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
    before, after = (line for line in printed.splitlines() if "ece" in line)
    assert "ece (before calibration)" in before
    assert "before calibration" not in after
    assert before.count(" of 30") == 1  # there is one source, whose figures are those of all


def test_nothing_to_evaluate_is_a_one_line_error(data, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--data", str(data)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    stderr = capsys.readouterr().err
    require_one_line(stderr, "bad_data")
    assert "--checkpoint FILE, --bundle DIR" in stderr


def test_data_with_other_outputs_is_refused(bundle, pictures, tmp_path):
    prepare_folder(pictures, tmp_path / "other", source="other")
    with pytest.raises(DataError, match="bundle and the data have different outputs"):
        evaluate(Evaluate(data=tmp_path / "other", bundle=bundle.folder, workers=0))


def test_pictures_that_judge_answers_need_a_bundle(finished_run, data, tmp_path):
    command = Evaluate(data=data, checkpoint=finished_run / "last.pt", negatives=tmp_path, workers=0)
    with pytest.raises(DataError, match=r"none is given.*--bundle"):
        evaluate(command)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"negatives": Path("missing")}, "no such folder .*correct --negatives"),
        ({"unknown": Path("missing")}, "no such folder .*correct --unknown"),
        ({"suspects": True}, "has no folder.*give --out DIR"),
    ],
)
def test_a_missing_folder_is_named_with_its_flag_before_anything_is_measured(flags, message, bundle, data, monkeypatch):
    monkeypatch.setattr("training.fit.pictures.run", lambda *arguments: pytest.fail("measured"))
    with pytest.raises(DataError, match=message):
        evaluate(Evaluate(data=data, bundle=bundle.folder, workers=0, **flags))


def test_a_checkpoint_is_measured_in_single_precision_on_a_gpu_too(finished_run, data, monkeypatch):
    asked = []
    monkeypatch.setattr("training.engine.device.allow_tf32", lambda _, allowed: asked.append(allowed))
    evaluate(Evaluate(data=data, checkpoint=finished_run / "last.pt", workers=0))
    assert asked == [False]


def with_wrong_labels(manifest, folder):
    """The data with two wrong labels among its training pictures, and the names of these."""
    labels = manifest.table["label"].to_pylist()
    wrong = [manifest.rows_of("train")[at] for at in (0, -1)]
    for row in wrong:
        labels[row] = next(label for label in labels if label != labels[row])
    return with_columns(manifest, folder, label=labels), {manifest.name(int(row)) for row in wrong}


def test_wrong_labels_among_the_training_pictures_are_listed_and_drawn(manifest, tmp_path, monkeypatch, capsys):
    data, wrong = with_wrong_labels(manifest, tmp_path / "data")

    def look_at_colors(batches):
        for pixels in batches:
            yield NetworkOutput(np.zeros((len(pixels), 3), np.float32), np.exp(-pixels.mean(axis=(2, 3))))

    subject = Subject("checkpoint", look_at_colors, SPEC, manifest.taxonomy.output_keys, 1.0, "another manifest")
    monkeypatch.setattr("training.evaluate._checkpoint_subject", lambda *arguments: subject)
    command = Evaluate(data=data, checkpoint=tmp_path / "last.pt", out=tmp_path / "out", workers=0)
    evaluate(replace(command, suspects=True, other_data=True))
    stem = tmp_path / "out" / "checkpoint-train-other-data-suspects"
    rows = list(csv.DictReader(stem.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
    assert {Path(row["path"]).resolve() for row in rows} == {Path(name).resolve() for name in wrong}
    with Image.open(stem.with_suffix(".jpg")) as sheet:
        assert sheet.size == (4 * 294 + 6, -(-len(rows) * 2 // 4) * 314 + 6)
    assert f"{len(rows)} of 30 training pictures have a suspect label: {stem}.csv" in capsys.readouterr().out


def test_without_suspects_no_sheet_of_an_earlier_evaluation_stays(finished_run, data, tmp_path, monkeypatch):
    sheet = tmp_path / "checkpoint-train-suspects.jpg"
    sheet.write_bytes(b"old")
    monkeypatch.setattr("training.suspects.suspects_of", lambda found: found.subset([]))
    evaluate(Evaluate(data=data, checkpoint=finished_run / "last.pt", out=tmp_path, suspects=True, workers=0))
    assert not sheet.exists()
    assert (tmp_path / "checkpoint-train-suspects.csv").read_text().startswith("path,")
