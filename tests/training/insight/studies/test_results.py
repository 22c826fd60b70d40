"""Reading the log of a run."""

import json

from training.insight.studies.figures import pictures_per_s
from training.insight.studies.results import Arm, read_result

ARM = Arm("larger", ("--batch-size", "8"), "A larger batch.")


def read_log_of(folder, events):
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    return read_result(folder, ARM, 0)


def start(step=0, time=0.0):
    return {"event": "start", "step": step, "time": time}


def saved(step, seconds):
    return {"event": "checkpoint", "step": step, "seconds": seconds}


def epoch(number, seconds, pictures_per_s=9.0):
    judged = {"top1": {"value": number / 10, "num_pictures": 40}, "loss": 1.5}
    plain = {"event": "epoch", "epoch": number, "step": 10 * number, "seconds": seconds, "side_px": 128}
    return {**plain, "pictures_per_s": pictures_per_s, "validation": judged}


def test_an_epoch_that_was_interrupted_has_the_time_of_both_its_parts(tmp_path):
    result = read_log_of(
        tmp_path / "run",
        [start(), epoch(1, 20.0), saved(10, 20.0), saved(15, 30.0), start(15), epoch(2, 11.0), saved(20, 41.0)],
    )
    assert [each.seconds for each in result.epochs] == [20, 21]
    assert result.num_starts == 2


def test_the_first_epoch_of_each_process_is_not_timed(tmp_path):
    events = [start(), epoch(1, 20.0, 5.0), epoch(2, 10.0, 10.0), start(25), epoch(3, 15.0, 4.0), epoch(4, 10.0, 11.0)]
    result = read_log_of(tmp_path / "run", events)
    assert [each.warm_up for each in result.epochs] == [True, False, True, False]
    assert pictures_per_s(result) == 10.5


def test_an_epoch_that_was_validated_after_a_kill_is_not_timed(tmp_path):
    """The run was killed during validation, after the epoch's checkpoint: the next process takes no step."""
    events = [start(), epoch(1, 20.0), saved(10, 20.0), saved(20, 30.0), start(20), epoch(2, 0.0, 0.0), saved(20, 30.0)]
    result = read_log_of(tmp_path / "run", [*events, epoch(3, 14.0, 5.0), epoch(4, 10.0, 8.0)])
    assert (result.epochs[1].seconds, result.epochs[1].top1) == (10, 0.2)
    assert [each.epoch for each in result.steady_epochs] == [4]
    assert pictures_per_s(result) == 8
    short = read_log_of(tmp_path / "short", events)
    assert short.top1 == 0.2
    assert pictures_per_s(short) is None


def test_events_before_a_restart_from_scratch_do_not_count(tmp_path):
    assert read_log_of(tmp_path / "run", [start(), epoch(1, 20.0), start()]).epochs == []


def test_a_run_without_a_log_has_no_epochs(tmp_path):
    result = read_result(tmp_path, ARM, 0, error="broken")
    assert (result.epochs, result.top1) == ([], None)
