import math
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.small import ROOT, run_training
from training.monitor.log import open_log
from training.monitor.tensorboard import event_values, rates
from training.recipe import RunRecipe

TOP1 = {"value": 0.5, "num_pictures": 8, "interval_95": (0.2, 0.8)}
# A run that writes one point and then waits to be killed.
WRITES_AND_WAITS = """
import sys, time
from pathlib import Path
from training.monitor.log import open_log
from training.recipe import RunRecipe
log = open_log(RunRecipe(run=Path(sys.argv[1])))
log.write("start", step=0, recipe={})
log.write("losses", step=1, losses=[0.5])
print("written", flush=True)
time.sleep(100)
"""


@pytest.fixture(autouse=True)
def with_tensorboard(monkeypatch):
    monkeypatch.setattr("training.monitor.log.find_spec", find_spec)


def follow(folder, first, last):
    """Logs a run from one step to another, with an epoch every three steps."""
    log = open_log(RunRecipe(run=folder))
    log.write("note", text="frozen norms")
    log.write("start", step=first, recipe={"name": "tiny", "schedule": {"epochs": 7}})
    for step in range(first + 1, last + 1):
        log.write("losses", step=step, losses=[first, step], lr=[0.1, 0.1, 0.3, 0.3])
        if step % 3 == 0:
            log.write("epoch", epoch=step // 3, seconds=2.0, validation={"top1": TOP1, "loss": 1.5})
    log.close()


def make_older(folder):
    """Makes the file names older: TensorBoard orders files by the second in their names."""
    for path in folder.glob("events.out.*"):
        prefix, second, rest = re.fullmatch(r"(\D+)(\d+)(.+)", path.name).groups()
        path.rename(folder / f"{prefix}{int(second) - 9}{rest}")


def displayed(folder):
    """The events that TensorBoard shows for a folder."""
    shows = EventAccumulator(str(folder))
    shows.Reload()
    return shows


def points(shows, tag):
    return [(point.step, round(point.value, 6)) for point in shows.Scalars(tag)]


def test_losses_rates_and_validation_are_at_their_steps(tmp_path):
    follow(tmp_path, 0, 4)
    shows = displayed(tmp_path)
    assert points(shows, "training/loss") == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    assert points(shows, "training/learning_rate/head")[0] == (1, 0.3)
    assert points(shows, "training/learning_rate/backbone")[0] == (1, 0.1)
    assert points(shows, "validation/top1") == [(3, 0.5)]
    assert (points(shows, "validation/top1/low"), points(shows, "validation/top1/high")) == ([(3, 0.2)], [(3, 0.8)])
    assert points(shows, "validation/loss") == [(3, 1.5)]
    assert points(shows, "epoch/seconds") == [(3, 2.0)]


def test_the_resolved_recipe_is_shown(tmp_path):
    follow(tmp_path, 0, 1)
    (text,) = displayed(tmp_path).Tensors("recipe/text_summary")
    assert b"| schedule | epochs | 7 |" in text.tensor_proto.string_val[0]


def test_notes_before_the_start_are_shown(tmp_path):
    follow(tmp_path, 0, 1)
    (text,) = displayed(tmp_path).Tensors("run/text/text_summary")
    assert (text.step, text.tensor_proto.string_val[0]) == (0, b"frozen norms")


def test_a_resumed_run_has_every_point_once(tmp_path):
    follow(tmp_path, 0, 7)  # killed, with a checkpoint at step 2
    make_older(tmp_path)
    follow(tmp_path, 2, 6)
    shows = displayed(tmp_path)
    assert points(shows, "training/loss") == [(1, 0.5), (2, 1), (3, 2.5), (4, 3), (5, 3.5), (6, 4)]
    assert [step for step, _ in points(shows, "validation/top1")] == [3, 6]


def test_a_run_that_starts_over_hides_the_previous_one(tmp_path):
    follow(tmp_path, 0, 7)
    make_older(tmp_path)
    follow(tmp_path, 0, 2)
    shows = displayed(tmp_path)
    assert points(shows, "training/loss") == [(1, 0.5), (2, 1)]
    assert points(shows, "validation/top1") == []


def test_a_sentence_is_text_and_a_list_becomes_its_mean():
    found = event_values(
        "epoch", {"epoch": 3, "step": 9, "verdict": "It waits.", "stages": {"wait": 0.5}, "use": [1, 2, 3]}
    )
    assert found == {"epoch/verdict": "It waits.", "epoch/stages/wait": 0.5, "epoch/use": 2}
    assert event_values("note", {"text": "frozen"}) == {"run/text": "frozen"}
    assert event_values("losses", {"losses": [1.0, 2.0], "gradient_norms": [], "scale": 8.0, "fine": True}) == {
        "training/loss": 1.5,
        "training/scale": 8.0,
    }


def test_a_validation_within_an_epoch_is_shown_as_that_of_an_epoch():
    found = {"top1": {"value": 0.5, "num_pictures": 9, "interval_95": [0.2, 0.8]}, "loss": 1.5}
    shown = event_values("validation", {"step": 3, "epoch": 1, "validation": found})
    assert shown == event_values("epoch", {"validation": found})
    assert shown["validation/top1"] == 0.5


def test_a_loss_that_is_nan_stays_nan():
    assert math.isnan(event_values("losses", {"losses": [1.0, math.nan]})["training/loss"])


def test_checkpoints_are_not_shown():
    assert event_values("checkpoint", {"file": "last.pt", "step": 3}) == {}


def test_rates_keep_the_names_they_come_with():
    assert rates({"backbone": 1.0}) == {"backbone": 1.0}
    assert rates([1.0, 1.0, 3.0, 3.0]) == {"backbone": 1.0, "head": 3.0}
    assert rates([1.0]) == {"group_1": 1.0}


@pytest.mark.slow
def test_a_killed_run_loses_seconds_at_most(tmp_path):
    command = [sys.executable, "-c", WRITES_AND_WAITS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout.readline() == "written\n"
        time.sleep(6)
        process.send_signal(signal.SIGKILL)
    assert points(displayed(tmp_path), "training/loss") == [(1, 0.5)]


def test_training_writes_what_tensorboard_shows(data, tmp_path):
    run_training(data, tmp_path / "on", "--max-steps", "2")
    assert len(points(displayed(tmp_path / "on"), "training/loss")) == 2


def test_without_the_package_only_the_log_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("training.monitor.log.find_spec", lambda _: None)
    log = open_log(RunRecipe(run=tmp_path))
    log.write("start", step=0, recipe={})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
