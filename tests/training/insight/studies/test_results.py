"""What is read from the diary of a run."""

import json

import pytest

from training.insight.studies.figures import pictures_per_s, short_run_per_s
from training.insight.studies.results import Arm, read_result

ARM = Arm("larger", ("--batch-size", "8"), "A larger batch.")
RECIPE = {"schedule": {"batch_size": 8, "accumulate": 2}}


def read_diary(folder, events):
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    return read_result(folder, ARM, 0)


def start(step=0, time=0.0):
    return {"event": "start", "step": step, "time": time, "recipe": RECIPE}


def losses(step, time):
    return {"event": "losses", "step": step, "time": time}


def saved(step, seconds):
    return {"event": "checkpoint", "step": step, "seconds": seconds}


def epoch(number, seconds, pictures_per_s=9.0):
    judged = {"top1": {"value": number / 10, "num_pictures": 40}, "loss": 1.5}
    plain = {"event": "epoch", "epoch": number, "step": 10 * number, "seconds": seconds, "side_px": 128}
    return {**plain, "pictures_per_s": pictures_per_s, "validation": judged}


def test_an_epoch_that_was_interrupted_has_the_time_of_both_its_parts(tmp_path):
    result = read_diary(
        tmp_path / "run",
        [start(), epoch(1, 20.0), saved(10, 20.0), saved(15, 30.0), start(15), epoch(2, 11.0), saved(20, 41.0)],
    )
    assert [each.seconds for each in result.epochs] == [20, 21]
    assert result.num_starts == 2


def test_no_epoch_in_which_a_process_warmed_up_is_timed(tmp_path):
    events = [start(), epoch(1, 20.0, 5.0), epoch(2, 10.0, 10.0), start(25), epoch(3, 15.0, 4.0), epoch(4, 10.0, 11.0)]
    result = read_diary(tmp_path / "run", events)
    assert [each.warm_up for each in result.epochs] == [True, False, True, False]
    assert pictures_per_s(result) == 10.5


def test_an_epoch_that_was_trained_before_a_kill_and_judged_after_it_is_judged_and_not_timed(tmp_path):
    """The run was killed in its validation, behind the checkpoint of the whole epoch: what goes on takes no step."""
    events = [start(), epoch(1, 20.0), saved(10, 20.0), saved(20, 30.0), start(20), epoch(2, 0.0, 0.0), saved(20, 30.0)]
    result = read_diary(tmp_path / "run", [*events, epoch(3, 14.0, 5.0), epoch(4, 10.0, 8.0)])
    assert (result.epochs[1].seconds, result.epochs[1].top1) == (10, 0.2)
    assert [each.epoch for each in result.steady_epochs] == [4]
    assert pictures_per_s(result) == 8
    short = read_diary(tmp_path / "short", events)
    assert short.top1 == 0.2
    assert pictures_per_s(short) is None


def test_what_a_run_wrote_before_it_began_anew_does_not_count(tmp_path):
    assert read_diary(tmp_path / "run", [start(), epoch(1, 20.0), start()]).epochs == []


def test_the_first_step_is_timed_without_those_that_were_read_with_it(tmp_path):
    events = [start(time=100.0), losses(20, 149.0), losses(40, 169.0)]  # 30 s, and 19 steps of 1 s
    assert read_diary(tmp_path / "run", events).seconds_to_first_step == pytest.approx(30)


def test_the_first_step_is_timed_from_the_start_that_came_to_it(tmp_path):
    """The first process was killed before it had read a loss, hours before the next one began."""
    events = [start(time=100.0), start(time=9000.0), losses(1, 9030.0)]
    assert read_diary(tmp_path / "run", events).seconds_to_first_step == pytest.approx(30)


def test_a_validation_between_two_readings_is_no_part_of_a_step(tmp_path):
    events = [start(time=100.0), losses(10, 139.0), epoch(1, 39.0), losses(20, 900.0), epoch(2, 10.0)]
    assert read_diary(tmp_path / "run", events).seconds_to_first_step == pytest.approx(30)
    assert read_diary(tmp_path / "short", events[:3]).seconds_to_first_step is None  # no pace is known


def test_a_run_that_ends_in_its_first_epoch_is_timed_between_its_readings(tmp_path):
    events = [start(time=100.0), losses(10, 160.0), losses(20, 165.0), losses(30, 170.0), epoch(1, 70.0, 6.9)]
    result = read_diary(tmp_path / "run", events)
    assert pictures_per_s(result) is None
    assert short_run_per_s(result) == pytest.approx(8 * 2 * 10 / 5)


def test_a_pause_or_a_checkpoint_between_two_readings_is_no_part_of_the_pace(tmp_path):
    events = [start(), losses(10, 10.0), saved(10, 10.0), losses(20, 99.0), start(20, 500.0), losses(30, 600.0)]
    result = read_diary(tmp_path / "run", [*events, losses(40, 604.0)])
    assert short_run_per_s(result) == pytest.approx(8 * 2 * 10 / 4)


def test_a_run_without_a_diary_has_no_epochs(tmp_path):
    result = read_result(tmp_path, ARM, 0, error="broken")
    assert (result.epochs, result.seconds_to_first_step, result.top1) == ([], None, None)
    assert short_run_per_s(result) is None
