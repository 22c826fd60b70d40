"""Arms of a study: training runs that differ in a few flags, each in a process of its own.

A study may be stopped at any time and started again: what is finished is not run again, what was interrupted goes on.
"""

import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from models.errors import BotanifyError, RecipeError
from training.atomic_file import remove_leftovers, replaced
from training.interruption import EXIT_COME_BACK, Interruption
from training.log import LOG_FILE, Event, read_log, without_repeats
from training.recipe import read_recipe, recipe_to_plain

TRAIN: Final = Path(__file__).resolve().parents[1] / "train.py"
ARM_FILE: Final = "arm.json"
OUTPUT_FILE: Final = "output.txt"
_ALWAYS: Final = ("--auto-resume", "--keep", "1", "--no-tensorboard")
_TOLD: Final = "error ("  # begins the line with which every program of this project ends that fails
_POLL_S: Final = 0.2
_GRACE_S: Final = 120.0  # a validation or a checkpoint that is under way may be finished first


class StudyPaused(BotanifyError):
    """The study was stopped, or its time is over; started again, it goes on."""

    code = "paused"


class Arm(msgspec.Struct, frozen=True):
    """One way to train."""

    name: str
    flags: tuple[str, ...]
    """Flags of train.py, added to those that all arms of the study have."""
    explains: str
    """What the arm is there to show, in a sentence."""


class EpochResult(msgspec.Struct, frozen=True):
    """What an epoch took and gave."""

    epoch: int
    """Epochs done, from 1 on."""
    seconds: float
    """Of training alone, without validation."""
    pictures_per_s: float
    top1: float | None
    """Share of the validation pictures that are named rightly, in [0, 1]; None where none was judged."""
    num_pictures: int | None
    """Validation pictures."""
    loss: float | None
    """Mean validation loss, nats."""
    memory_gb: float | None
    """Most GPU memory held, GB; None on a CPU."""


class ArmResult(msgspec.Struct, frozen=True):
    """What an arm gave with one seed."""

    arm: Arm
    seed: int
    epochs: list[EpochResult]
    seconds_to_first_step: float | None
    """From the start of training to the end of the first step; kernels are chosen and compiled in it."""
    error: str = ""
    """Why the run failed; empty where it did not."""

    @property
    def top1(self) -> float | None:
        """Validation top-1 at the end; never that of the best epoch, which would be picked by what it is judged on."""
        return self.epochs[-1].top1 if self.epochs and not self.error else None

    @property
    def is_final(self) -> bool:
        """Whether the run came to its end or told why not; one that crashed or was killed is tried again."""
        return not self.error or self.error.startswith(_TOLD)

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def steady_epochs(self) -> list[EpochResult]:
        """The epochs to time an arm by: all but the first, which warms up, where there are more."""
        return self.epochs[1:] or self.epochs


class _ArmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a run's folder: which run it is, and its result once there is one."""

    flags: tuple[str, ...]
    recipe: dict[str, Any]
    result: ArmResult | None = None


def run_arm(
    recipe: Path,
    arm: Arm,
    seed: int,
    folder: Path,
    common: Sequence[str],
    *,
    seconds: float | None = None,
    deadline: float | None = None,
) -> ArmResult:
    """Runs train.py for one arm and one seed, unless that is done already.

    A run that ends with an error of its own keeps it as its result, and the study goes on; remove its folder to try it
    again. A run that crashed or was killed from outside goes on when the study is started again. Weights are removed at
    the end.

    Args:
        recipe: The recipe of all arms.
        arm: What is special about this one.
        seed: Seed of the run.
        folder: Folder of the study's runs.
        common: Flags of train.py for all arms.
        seconds: Stop after so much training, with a validation; default: the recipe's end.
        deadline: When to stop for now, on the clock of `time.monotonic`.

    Raises:
        RecipeError: The folder holds this arm with other flags or another recipe.
        StudyPaused: The deadline came, or this process was asked to end.
    """
    run = folder / f"{arm.name}-seed{seed}"
    limit = () if seconds is None else ("--max-seconds", f"{seconds:.3f}")
    flags = (*common, *arm.flags, *limit, "--seed", str(seed))
    begun = _ArmFile(flags, msgspec.json.decode(msgspec.json.encode(recipe_to_plain(read_recipe(recipe)))))
    stored = _read(run, begun)
    if stored is not None and stored.result is not None:
        return stored.result
    if deadline is not None and time.monotonic() >= deadline:
        raise StudyPaused("the time is over; start the same command again to go on.")
    if stored is None:
        _write(run, begun)
    code, paused = _train((str(recipe), *flags, "--run", str(run), *_ALWAYS), run / OUTPUT_FILE, deadline)
    result = read_result(run, arm, seed, error=_error(code, run / OUTPUT_FILE))
    if code == 0 or (result.is_final and not paused):
        _write(run, msgspec.structs.replace(begun, result=result))
    if code == 0:
        for weights in run.glob("*.pt"):
            weights.unlink()
    if paused:
        raise StudyPaused("the study was stopped; start the same command again to go on.")
    return result


def read_result(run: Path, arm: Arm, seed: int, error: str = "") -> ArmResult:
    """Reads what a run has written into its diary so far."""
    events = without_repeats(read_log(run)) if (run / LOG_FILE).is_file() else []
    return ArmResult(arm, seed, _epochs(events), _first_step_s(events), error)


def _epochs(events: list[Event]) -> list[EpochResult]:
    """The epochs in order.

    An epoch that was interrupted is timed from its last beginning on; the checkpoint behind it has the whole time.
    """
    found: dict[int, EpochResult] = {}
    last, before = None, 0.0
    for event in events:
        if event["event"] == "epoch":
            last = _epoch(event)
            found[last.epoch] = last
        elif event["event"] == "checkpoint" and last is not None:
            found[last.epoch] = msgspec.structs.replace(last, seconds=event["seconds"] - before)
            last, before = None, event["seconds"]
    return [found[number] for number in sorted(found)]


def _epoch(event: Event) -> EpochResult:
    validation = event.get("validation") or {}
    top1 = validation.get("top1") or {}
    return EpochResult(
        epoch=event["epoch"],
        seconds=event["seconds"],
        pictures_per_s=event["pictures_per_s"],
        top1=top1.get("value"),
        num_pictures=top1.get("num_pictures"),
        loss=validation.get("loss"),
        memory_gb=event.get("memory_gb"),
    )


def _first_step_s(events: list[Event]) -> float | None:
    """Losses are read every few steps: those behind the first are taken off at the pace of later ones."""
    began = next((event["time"] for event in events if event["event"] == "start"), None)
    first = next((event for event in events if event["event"] == "losses"), None)
    if began is None or first is None:
        return None
    pace = _seconds_a_step(events) if first["step"] > 1 else 0.0
    return None if pace is None else float(max(first["time"] - began - (first["step"] - 1) * pace, 0.0))


def _seconds_a_step(events: list[Event]) -> float | None:
    """The pace behind the first epoch; where there is one epoch only, that between two readings in it."""
    epochs = [event for event in events if event["event"] == "epoch"]
    paces = [
        later["seconds"] / (later["step"] - one["step"])
        for one, later in pairwise(epochs)
        if later["step"] > one["step"]
    ]
    if not paces:
        ends = epochs[0]["step"] if epochs else math.inf
        readings = [event for event in events if event["event"] == "losses" and event["step"] <= ends]
        paces = [
            (b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in pairwise(readings) if b["step"] > a["step"]
        ]
    return statistics.median(paces) if paces else None


def _read(run: Path, begun: _ArmFile) -> _ArmFile | None:
    path = run / ARM_FILE
    if not path.is_file():
        return None
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_ArmFile)
    except msgspec.DecodeError as error:
        raise RecipeError(f"{path} is no result of an arm", value=error, remedy="remove the folder") from error
    if (stored.flags, stored.recipe) != (begun.flags, begun.recipe):
        raise RecipeError(
            "the folder holds this arm as it was run with other flags or another recipe",
            value=run,
            limit=" ".join(stored.flags),
            remedy="name another folder with --out, or remove that one",
        )
    return stored


def _write(run: Path, content: _ArmFile) -> None:
    run.mkdir(parents=True, exist_ok=True)
    remove_leftovers(run / ARM_FILE)
    with replaced(run / ARM_FILE) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(content)))


def _train(arguments: Sequence[str], output: Path, deadline: float | None) -> tuple[int, bool]:
    """Runs train.py to its end.

    Returns:
        Its exit code, negative for a signal; and whether it was told to stop before its end.
    """
    with output.open("wb") as told, Interruption() as asked:
        process = subprocess.Popen([sys.executable, str(TRAIN), *arguments], stdout=told, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                if asked.requested or (deadline is not None and time.monotonic() >= deadline):
                    process.terminate()
                    process.wait(_GRACE_S)
                    return process.returncode, True
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            return process.returncode, process.returncode == EXIT_COME_BACK
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL, True
        finally:
            process.kill()  # does nothing to a process that has ended
            process.wait()


def _error(code: int, output: Path) -> str:
    """Why a run failed, in the program's own line."""
    if code == 0:
        return ""
    if code < 0:
        return f"ended from outside by signal {-code}"
    lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(_TOLD)]
    return (told or lines or [f"exit code {code}"])[-1].strip()
