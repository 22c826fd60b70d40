"""Runs of a study, with a stand-in for train.py that writes a diary as it would."""

import json
import time

import pytest

from models.errors import RecipeError
from tests.training.small import RECIPE
from training.studies import arms
from training.studies.arms import Arm, StudyPaused, read_result, run_arm

ARM = Arm("larger", ("--batch-size", "8"), "A larger batch.")
STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path

arguments = sys.argv[1:]
run = Path(arguments[arguments.index("--run") + 1])
calls = run / "calls.json"
made = json.loads(calls.read_text()) if calls.exists() else []
calls.write_text(json.dumps([*made, arguments]))
first_time = not made


def write(**event):
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps({"time": 100.0, **event}) + "\\n")


def epoch(number, seconds, top1):
    judged = {"top1": {"value": top1, "num_pictures": 40}, "loss": 1.5}
    write(event="epoch", epoch=number, step=10 * number, seconds=seconds, pictures_per_s=50.0, validation=judged)


"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a script in the place of train.py."""

    def replace(behavior):
        path = tmp_path / "stand_in.py"
        path.write_text(STAND_IN + behavior)
        monkeypatch.setattr(arms, "TRAIN", path)
        return tmp_path / "runs"

    return replace


def calls(folder):
    return json.loads((folder / "larger-seed3" / "calls.json").read_text())


def test_an_arm_is_one_run_with_its_flags_and_its_seed(program):
    folder = program("write(event='start', step=0)\nepoch(1, 4.0, 0.25)\nepoch(2, 3.0, 0.5)\nprint('done')")
    result = run_arm(RECIPE, ARM, 3, folder, ("--epochs", "2"), seconds=9)
    assert [(epoch.epoch, epoch.seconds, epoch.top1) for epoch in result.epochs] == [(1, 4, 0.25), (2, 3, 0.5)]
    assert (result.top1, result.seconds, result.error) == (0.5, 7, "")
    assert (result.epochs[1].num_pictures, result.epochs[1].loss, result.epochs[1].memory_gb) == (40, 1.5, None)
    told = " ".join(calls(folder)[0])
    assert told.startswith(f"{RECIPE} --epochs 2 --batch-size 8 --max-seconds 9.000 --seed 3 --run ")
    assert "--auto-resume" in told


def test_a_finished_arm_is_not_run_again_and_keeps_no_weights(program):
    folder = program("epoch(1, 4.0, 0.25)\n(run / 'last.pt').write_bytes(b'weights')")
    first = run_arm(RECIPE, ARM, 3, folder, ())
    assert run_arm(RECIPE, ARM, 3, folder, ()) == first
    assert len(calls(folder)) == 1
    assert not (folder / "larger-seed3" / "last.pt").exists()


def test_a_failed_arm_keeps_its_error_and_is_not_run_again(program):
    folder = program("print('error (out_of_memory): too large.', file=sys.stderr)\nsys.exit(1)")
    results = [run_arm(RECIPE, ARM, 3, folder, ()) for _ in range(2)]
    assert [result.error for result in results] == ["error (out_of_memory): too large."] * 2
    assert results[0].top1 is None
    assert len(calls(folder)) == 1


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended from outside by signal 9"),
        ("raise KeyError('no error of this project')", "KeyError: 'no error of this project'"),
    ],
)
def test_an_arm_that_was_killed_or_crashed_goes_on_when_the_study_is_started_again(ends, told, program):
    folder = program(f"epoch(1, 4.0, 0.25)\nif first_time: {ends}\nepoch(2, 4.0, 0.5)")
    assert run_arm(RECIPE, ARM, 3, folder, ()).error == told
    result = run_arm(RECIPE, ARM, 3, folder, ())
    assert (result.error, result.top1, len(calls(folder))) == ("", 0.5, 2)


@pytest.mark.parametrize("asked", ["by its deadline", "by SIGTERM"])
def test_a_study_that_is_told_to_stop_stops_its_run_and_goes_on_later(asked, program):
    stops = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
    tells = "os.kill(os.getppid(), signal.SIGTERM)\n" if asked == "by SIGTERM" else ""
    folder = program(f"{stops}if first_time:\n    {tells or 'pass'}\n    time.sleep(60)\nepoch(1, 4.0, 0.5)")
    began = time.monotonic()
    deadline = None if tells else began + 0.5
    with pytest.raises(StudyPaused):
        run_arm(RECIPE, ARM, 3, folder, (), deadline=deadline)
    assert time.monotonic() - began < 30
    assert run_arm(RECIPE, ARM, 3, folder, ()).top1 == 0.5


def test_no_run_begins_after_the_deadline(program):
    folder = program("")
    with pytest.raises(StudyPaused):
        run_arm(RECIPE, ARM, 3, folder, (), deadline=time.monotonic())
    assert not folder.exists()


def test_results_of_other_flags_are_never_taken_for_those_of_this_arm(program):
    folder = program("epoch(1, 4.0, 0.25)")
    run_arm(RECIPE, ARM, 3, folder, ("--epochs", "1"))
    with pytest.raises(RecipeError, match="--epochs 1 --batch-size 8"):
        run_arm(RECIPE, ARM, 3, folder, ("--epochs", "2"))


def write_diary(folder, events):
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    return read_result(folder, ARM, 0)


def epoch(number, seconds):
    return {"event": "epoch", "epoch": number, "step": 10 * number, "seconds": seconds, "pictures_per_s": 9.0}


def test_an_epoch_that_was_interrupted_has_the_time_of_both_its_parts(tmp_path):
    result = write_diary(
        tmp_path / "run",
        [
            {"event": "start", "step": 0},
            epoch(1, 20.0),
            {"event": "checkpoint", "step": 10, "seconds": 20.0},
            {"event": "checkpoint", "step": 15, "seconds": 30.0},
            {"event": "start", "step": 15},
            epoch(2, 11.0),
            {"event": "checkpoint", "step": 20, "seconds": 41.0},
        ],
    )
    assert [each.seconds for each in result.epochs] == [20, 21]
    assert [each.epoch for each in result.steady_epochs] == [2]


def test_what_a_run_wrote_before_it_began_anew_does_not_count(tmp_path):
    result = write_diary(
        tmp_path / "run", [{"event": "start", "step": 0}, epoch(1, 20.0), {"event": "start", "step": 0}]
    )
    assert result.epochs == []


def test_the_first_step_is_timed_without_those_that_were_read_with_it(tmp_path):
    events = [
        {"event": "start", "step": 0, "time": 100.0},
        {"event": "losses", "step": 20, "time": 149.0},  # 30 s, and 19 steps of 1 s
        {"event": "losses", "step": 40, "time": 169.0},
    ]
    assert write_diary(tmp_path / "run", events).seconds_to_first_step == pytest.approx(30)


def test_a_validation_between_two_readings_is_no_part_of_a_step(tmp_path):
    events = [
        {"event": "start", "step": 0, "time": 100.0},
        {"event": "losses", "step": 10, "time": 139.0},
        epoch(1, 39.0),
        {"event": "losses", "step": 20, "time": 900.0},
        epoch(2, 10.0),
    ]
    assert write_diary(tmp_path / "run", events).seconds_to_first_step == pytest.approx(30)
    assert write_diary(tmp_path / "short", events[:3]).seconds_to_first_step is None  # no pace is known


def test_a_run_without_a_diary_has_no_epochs(tmp_path):
    result = read_result(tmp_path, ARM, 0, error="broken")
    assert (result.epochs, result.seconds_to_first_step, result.top1) == ([], None, None)
