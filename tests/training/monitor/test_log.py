import json

import pytest

from models.errors import DataError
from training.monitor.log import RunLog, open_log, read_log, without_repeats
from training.recipe import RunRecipe


class Recorder:
    """Records events; with `fails` it raises like a full disk."""

    def __init__(self, fails=False):
        self.events, self.fails, self.closed = [], fails, False

    def on_event(self, event, fields):
        if self.fails:
            raise OSError(28, "No space left on device")
        self.events.append((event, dict(fields)))

    def close(self):
        self.closed = True


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


def test_a_later_run_appends_to_the_same_log(tmp_path):
    for name in ("start", "resume"):
        log = RunLog(tmp_path)
        log.write(name)
        log.close()
    assert names(tmp_path) == ["start", "resume"]


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


def test_listeners_receive_every_event(tmp_path):
    recorder = Recorder()
    log = RunLog(tmp_path, [recorder])
    log.write("losses", step=1)
    log.close()
    assert recorder.events == [("losses", {"step": 1})]
    assert recorder.closed


def test_a_listener_that_cannot_write_is_dropped_and_the_run_continues(tmp_path):
    broken, sound = Recorder(fails=True), Recorder()
    log = RunLog(tmp_path, [broken, sound])
    log.write("losses", step=1)
    log.write("losses", step=2)
    log.close()
    assert names(tmp_path).count("note") == 1
    assert [fields["step"] for event, fields in sound.events if event == "losses"] == [1, 2]
    (note,) = (event["note"] for event in read_log(tmp_path) if event["event"] == "note")
    assert "No space left on device" in note


def test_ranks_other_than_the_main_one_write_nothing(tmp_path):
    log = open_log(RunRecipe(run=tmp_path / "run"), is_main=False)
    log.write("start", step=0)
    log.close()
    assert not (tmp_path / "run").exists()


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
