import json

import pytest

from benchmarks.gpu.epoch_time import EpochTime, epoch_time
from models.errors import DataError
from tests.training.evaluation.test_drawings import write_run
from training.engine.reporting import EpochSummary
from training.monitor.monitor import EpochTiming

RECIPE = {"network": {}, "pictures": {}, "augment": {}, "hardware": {}, "schedule": {"batch_size": 8}}


def epoch(number, seconds, per_s):
    use = {"pictures": 90, "seconds": 3.0, "stages": {"wait": 0.6}}
    speed = {"seconds": seconds, "pictures_per_s": per_s, "memory_gb": 2.0, "use": use}
    return {"event": "epoch", "epoch": number, **speed}


def write_log(run, *epochs):
    write_run(run, {"event": "start", "step": 0, "recipe": RECIPE | {"data": {"workers": 4}}}, *epochs)


def test_the_first_epoch_does_not_count(tmp_path):
    write_log(tmp_path / "run", epoch(1, 60.0, 2.0), epoch(2, 5.0, 20.0), epoch(3, 5.0, 24.0))
    out = tmp_path / "epoch-time.json"
    result = epoch_time(EpochTime(run=tmp_path / "run", pictures=79_200, out=out))
    assert (result.num_epochs, result.num_pictures, result.per_s) == (2, 220, 22.0)
    assert (result.per_s_running, result.waiting, result.epoch_h) == (30.0, 0.2, 1.0)
    assert json.loads(out.read_text())["recipe"]["workers"] == 4


def test_a_run_of_one_epoch_is_too_short(tmp_path):
    write_log(tmp_path / "run", epoch(1, 60.0, 2.0))
    with pytest.raises(DataError, match="too short"):
        epoch_time(EpochTime(run=tmp_path / "run", out=tmp_path / "epoch-time.json"))


def test_the_log_has_the_fields_that_are_read():
    assert {"seconds", "pictures_per_s", "memory_gb", "use"} <= set(EpochSummary.__struct_fields__)
    assert {"pictures", "seconds", "stages"} <= set(EpochTiming.__struct_fields__)
