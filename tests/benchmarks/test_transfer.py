import json

import msgspec
import pytest

from benchmarks.gpu.transfer import Transfer, summarize
from models.errors import DataError
from models.metrics import Share
from training.evaluation.split_metrics import Evaluation, SplitMetrics


def write_evaluation(folder, top1):
    share = Share(top1, 200, (0.0, 1.0))
    metrics = SplitMetrics(share, share, share, share, share, 1.5)
    evaluation = Evaluation("checkpoint", "test", 1.0, metrics, {}, {}, {}, [])
    (folder / "evaluation").mkdir(parents=True)
    (folder / "evaluation" / "checkpoint-test.json").write_bytes(msgspec.json.encode(evaluation))


def test_the_best_arm_comes_first_with_the_range_of_its_runs(tmp_path, capsys):
    for arm, seed, top1 in [("scratch", 0, 0.5), ("head-3x", 0, 0.6), ("head-3x", 1, 0.8)]:
        write_evaluation(tmp_path / arm / str(seed), top1)
    result = summarize(Transfer(folder=tmp_path, out=tmp_path / "transfer.json"))
    assert [(arm.name, arm.top1, arm.seeds) for arm in result.arms] == [
        ("head-3x", [0.6, 0.8], ["0", "1"]),
        ("scratch", [0.5], ["0"]),
    ]
    assert "| head-3x | 70.0% | 60.0% to 80.0% | 2 |" in capsys.readouterr().out
    assert [arm["num_pictures"] for arm in json.loads((tmp_path / "transfer.json").read_text())["arms"]] == [200, 200]


def test_a_folder_without_evaluations_and_a_damaged_one_are_refused(tmp_path):
    with pytest.raises(DataError, match="no evaluation"):
        summarize(Transfer(folder=tmp_path, out=tmp_path / "transfer.json"))
    write_evaluation(tmp_path / "scratch" / "0", 0.5)
    (tmp_path / "scratch" / "0" / "evaluation" / "checkpoint-test.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        summarize(Transfer(folder=tmp_path, out=tmp_path / "transfer.json"))
