"""Runs of a study with a script that writes a log instead of train.py."""

import json
import time

import pytest

from models.errors import RecipeError
from tests.training.small import RECIPE
from training.insight.studies import arms
from training.insight.studies.arms import StudyPaused, TimeSlice, run_arm
from training.insight.studies.results import Arm

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
    """Replaces train.py by a script."""

    def replace(behavior):
        path = tmp_path / "stand_in.py"
        path.write_text(STAND_IN + behavior)
        monkeypatch.setattr(arms, "TRAIN", path)
        return tmp_path / "runs"

    return replace


def run(folder, common=(), until=None, **limits):
    return run_arm(RECIPE, ARM, 3, folder, common, until=until or TimeSlice(), **limits)


def calls(folder):
    return json.loads((folder / "larger-seed3" / "calls.json").read_text())


def test_an_arm_is_one_run_with_its_flags_and_its_seed(program):
    folder = program("write(event='start', step=0)\nepoch(1, 4.0, 0.25)\nepoch(2, 3.0, 0.5)\nprint('done')")
    result = run(folder, ("--epochs", "2"), max_seconds=9)
    assert [(epoch.epoch, epoch.seconds, epoch.top1) for epoch in result.epochs] == [(1, 4, 0.25), (2, 3, 0.5)]
    assert (result.top1, result.seconds, result.error) == (0.5, 7, "")
    assert (result.epochs[1].num_pictures, result.epochs[1].loss, result.epochs[1].memory_gb) == (40, 1.5, None)
    told = " ".join(calls(folder)[0])
    assert told.startswith(f"{RECIPE} --epochs 2 --batch-size 8 --max-seconds 9.000 --seed 3 --run ")
    assert "--auto-resume" in told


def test_a_finished_arm_is_not_run_again_and_keeps_no_weights(program):
    folder = program("epoch(1, 4.0, 0.25)\n(run / 'last.pt').write_bytes(b'weights')")
    first = run(folder)
    assert run(folder) == first
    assert len(calls(folder)) == 1
    assert not (folder / "larger-seed3" / "last.pt").exists()


def test_a_failed_arm_keeps_its_error_and_is_not_run_again(program):
    folder = program("print('error (out_of_memory): too large.', file=sys.stderr)\nsys.exit(1)")
    results = [run(folder) for _ in range(2)]
    assert [result.error for result in results] == ["error (out_of_memory): too large."] * 2
    assert results[0].top1 is None
    assert len(calls(folder)) == 1


CRASHES = [
    ("os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
    ("raise KeyError('no error of this project')", "KeyError: 'no error of this project'"),
]


@pytest.mark.parametrize("ends", [crash for crash, _ in CRASHES])
def test_an_arm_that_was_killed_or_crashed_once_is_resumed(ends, program):
    result = run(folder := program(f"if first_time:\n    epoch(1, 4.0, 0.25)\n    {ends}\nepoch(2, 4.0, 0.5)"))
    assert (result.error, result.top1, len(calls(folder))) == ("", 0.5, 2)


@pytest.mark.parametrize(("ends", "told"), CRASHES)
def test_the_error_of_a_second_crash_is_the_result(ends, told, program):
    folder = program(f"epoch(1, 4.0, 0.25)\n{ends}")
    results = [run(folder) for _ in range(2)]
    assert [result.error for result in results] == [told] * 2
    assert len(calls(folder)) == 2


def test_crashes_are_counted_across_pauses(program):
    folder = program("if first_time: sys.exit(3)\ntime.sleep(0 if len(made) > 1 else 60)\nsys.exit(3)")
    with pytest.raises(StudyPaused):  # the second attempt comes to no end
        run(folder, until=TimeSlice(1.0))
    assert run(folder).error == "exit code 3"
    assert len(calls(folder)) == 3


@pytest.mark.parametrize("asked", ["by its deadline", "by SIGTERM"])
def test_a_paused_study_stops_its_run_and_resumes_it_later(asked, program):
    stops = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
    tells = "os.kill(os.getppid(), signal.SIGTERM)\n" if asked == "by SIGTERM" else ""
    folder = program(f"{stops}if first_time:\n    {tells or 'pass'}\n    time.sleep(60)\nepoch(1, 4.0, 0.5)")
    began = time.monotonic()
    with TimeSlice(0.0 if tells else 0.5) as until, pytest.raises(StudyPaused):
        run(folder, until=until)
    assert time.monotonic() - began < 30
    assert run(folder).top1 == 0.5


def test_a_run_that_ends_by_sigterm_has_not_crashed(program):
    folder = program("if len(made) < 3: os.kill(os.getpid(), signal.SIGTERM)\nepoch(1, 4.0, 0.5)")
    for _ in range(3):
        with pytest.raises(StudyPaused):
            run(folder)
    assert run(folder).top1 == 0.5


def test_no_run_begins_after_the_time_slice(program):
    folder = program("")
    until = TimeSlice(1e-9)
    time.sleep(0.01)
    with pytest.raises(StudyPaused):
        run(folder, until=until)
    assert not folder.exists()


def test_results_of_other_flags_are_never_taken_for_those_of_this_arm(program):
    folder = program("epoch(1, 4.0, 0.25)")
    run(folder, ("--epochs", "1"))
    with pytest.raises(RecipeError, match="--epochs 1 --batch-size 8"):
        run(folder, ("--epochs", "2"))
