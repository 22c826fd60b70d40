import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from benchmarks.sweep import without_repeats
from models.errors import DataError
from tests.training.small import ROOT, run_training
from training.monitor import log as module
from training.monitor.log import RunLog, read_log

TOP1 = {"value": 0.5, "num_pictures": 8, "interval_95": (0.2, 0.8)}
EPOCH = {"seconds": 2.0, "pictures_per_s": 9.5, "validation": {"top1": TOP1, "top5": TOP1, "loss": 1.5}}
RATES = {"backbone": 0.1, "head": 0.3}
# A run that writes one point and then waits to be killed.
WRITES_AND_WAITS = """
import sys, time
from pathlib import Path
from training.monitor.log import RunLog
log = RunLog(Path(sys.argv[1]))
log.write("start", step=0, recipe={})
log.write("losses", step=1, losses=[0.5], lr={})
print("written", flush=True)
time.sleep(100)
"""


@pytest.fixture(autouse=True)
def tensorboard(monkeypatch):
    """Other tests write no event files."""
    monkeypatch.setattr(module, "find_spec", lambda _: True)


def names(folder):
    return [json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_an_event_is_on_disk_as_soon_as_it_is_written(tmp_path):
    log = RunLog(tmp_path / "new" / "run")
    log.write("losses", step=3, losses=[0.5, 0.25])
    (line,) = (tmp_path / "new" / "run" / "log.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event.pop("time") > 1.7e9
    assert event == {"event": "losses", "step": 3, "losses": [0.5, 0.25]}
    log.close()


def test_a_loss_that_is_not_finite_is_null_in_json(tmp_path):
    log = RunLog(tmp_path)
    log.write("losses", losses=[float("nan"), float("inf")])
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text())["losses"] == [None, None]


def test_a_line_that_a_crash_cut_off_is_removed_before_appending(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"event":"start"}\n{"event":"los')
    log = RunLog(tmp_path)
    log.write("resume")
    log.close()
    assert names(tmp_path) == ["start", "resume"]


def test_reading_skips_lines_that_a_crash_cut_off(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"event":"start"}\n\0\0\0\n7\n{"event":"los')
    assert read_log(tmp_path) == [{"event": "start"}]


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        read_log(tmp_path)


def test_ranks_other_than_the_main_one_write_nothing():
    log = RunLog(None)
    log.write("start", step=0)
    log.close()


def test_steps_that_were_repeated_after_a_kill_count_once():
    def run(first, *steps):
        took = ({"event": "losses", "step": step, "run": first} for step in steps)
        return [{"event": "note"}, {"event": "start", "step": first}, *took]

    events = [*run(0, 1, 2, 3), *run(2, 3, 4)]
    counted = [(event["step"], event["run"]) for event in without_repeats(events) if event["event"] == "losses"]
    assert counted == [(1, 0), (2, 0), (3, 2), (4, 2)]
    over = [event["step"] for event in without_repeats([*events, *run(0, 1)]) if event["event"] == "losses"]
    assert over == [1]
    assert [event["event"] for event in without_repeats(events)].count("note") == 2


# ---- TensorBoard


@pytest.mark.parametrize("fails", ["add_scalar", "close"])
def test_a_full_disk_ends_tensorboard_and_not_the_run(fails, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, fails, full)
    follow(tmp_path, 0, 2)
    notes = [event["note"] for event in read_log(tmp_path) if event["event"] == "note"]
    assert any("No space left on device" in note for note in notes) == (fails == "add_scalar")
    assert names(tmp_path).count("losses") == 2


def follow(folder, first, last):
    """Logs a run from one step to another, with an epoch every three steps."""
    log = RunLog(folder)
    log.write("note", note="frozen norms")
    log.write("start", step=first, recipe={"name": "tiny"})
    for step in range(first + 1, last + 1):
        log.write("losses", step=step, losses=[first, step], lr=RATES)
        if step % 3 == 0:
            log.write("epoch", epoch=step // 3, step=step, **EPOCH)
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
    known = tag in shows.Tags()["scalars"]
    return [(point.step, round(point.value, 6)) for point in shows.Scalars(tag)] if known else []


def test_losses_rates_and_validation_are_at_their_steps(tmp_path):
    follow(tmp_path, 0, 4)
    shows = displayed(tmp_path)
    assert points(shows, "training/loss") == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    assert points(shows, "training/learning_rate/head")[0] == (1, 0.3)
    assert points(shows, "training/learning_rate/backbone")[0] == (1, 0.1)
    assert points(shows, "validation/top1") == [(3, 0.5)]
    assert points(shows, "validation/loss") == [(3, 1.5)]
    assert points(shows, "epoch/seconds") == [(3, 2.0)]


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


@pytest.mark.slow
def test_a_killed_run_loses_seconds_at_most(tmp_path):
    command = [sys.executable, "-c", WRITES_AND_WAITS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout.readline() == "written\n"
        time.sleep(6)
        process.send_signal(signal.SIGKILL)
    assert points(displayed(tmp_path), "training/loss") == [(1, 0.5)]


def test_training_logs_its_rates_by_name_and_writes_what_tensorboard_shows(data, tmp_path):
    run_training(data, tmp_path / "on", "--max-steps", "2")
    shows = displayed(tmp_path / "on")
    assert len(points(shows, "training/loss")) == 2
    assert 0.0009 < points(shows, "training/learning_rate/head")[0][1] <= 0.001
    assert all(set(event["lr"]) == set(RATES) for event in read_log(tmp_path / "on") if event["event"] == "losses")


def test_without_tensorboard_there_is_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    follow(tmp_path, 0, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
