"""Runs one arm of a study with one seed, in its own process.

A study may be stopped at any time. Started again, it skips finished runs and resumes an interrupted one.
"""

import math
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from models.errors import BotanifyError, RecipeError
from training.atomic_file import remove_leftovers, replaced
from training.engine.stop_signal import EXIT_REQUEUE, StopSignal
from training.insight.studies.results import Arm, ArmResult, read_result
from training.recipe import read_recipe, recipe_to_plain

TRAIN: Final = Path(__file__).resolve().parents[2] / "train.py"
ARM_FILE: Final = "arm.json"
OUTPUT_FILE: Final = "output.txt"
_ALWAYS: Final = ("--auto-resume",)
_ERROR: Final = "error ("  # begins the last line of a program of this project that fails
_MAX_CRASHES: Final = 2  # per run; otherwise a permanent cause would block the study
_POLL_S: Final = 0.2
# Enough for train.py to finish a checkpoint. Schedulers often kill a process a minute after SIGTERM, and the report is
# still to be written.
_GRACE_S: Final = 40.0
_AGAIN: Final = "start the same command again to resume."


class StudyPaused(BotanifyError):
    """The study was stopped, or its time is over; the same command resumes it."""

    code = "paused"


class TimeSlice:
    """The time until a study pauses: a number of seconds, or until SIGTERM or Ctrl-C.

    Inside a `with` block these only set a flag, so that the results so far can still be written.

    Args:
        seconds: 0 sets no limit.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._ends = time.monotonic() + seconds if seconds > 0 else math.inf
        self._signal = StopSignal()

    def __enter__(self) -> Self:
        self._signal.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._signal.__exit__(kind, error, at)

    @property
    def is_over(self) -> bool:
        """Whether the current run shall stop and no other begin."""
        return self._signal.received or time.monotonic() >= self._ends


class _ArmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of a run, and its result if it is finished."""

    flags: tuple[str, ...]
    recipe: dict[str, Any]
    num_crashes: int = 0
    result: ArmResult | None = None


def run_arm(
    recipe: Path,
    arm: Arm,
    seed: int,
    folder: Path,
    common: Sequence[str],
    *,
    until: TimeSlice,
    max_seconds: float | None = None,
) -> ArmResult:
    """Runs train.py for one arm and one seed, unless the result exists already.

    If train.py reports an error, the error is the result; remove the folder to try again. If train.py crashes or is
    killed, it is resumed once; after the second crash the error is the result. Weights are removed at the end.

    Args:
        recipe: The recipe of all arms.
        arm: The arm.
        seed: Seed of the run.
        folder: Folder of the study's runs.
        common: Flags of train.py for all arms.
        until: When to pause.
        max_seconds: Stop after so much training, with a validation.

    Raises:
        RecipeError: The folder holds this arm with other flags or another recipe.
        StudyPaused: The time slice is over.
    """
    run = folder / f"{arm.name}-seed{seed}"
    limit = () if max_seconds is None else ("--max-seconds", f"{max_seconds:.3f}")
    flags = (*common, *arm.flags, *limit, "--seed", str(seed))
    plain = msgspec.json.decode(msgspec.json.encode(recipe_to_plain(read_recipe(recipe))))
    record = _read(run, _ArmFile(flags, plain))
    while record.result is None:
        if until.is_over:
            raise StudyPaused(f"the time is over; {_AGAIN}")
        _write(run, record)
        error = _train((str(recipe), *flags, "--run", str(run), *_ALWAYS), run / OUTPUT_FILE, until)
        num_crashes = record.num_crashes + (error != "" and not error.startswith(_ERROR))
        ended = not error or error.startswith(_ERROR) or num_crashes == _MAX_CRASHES
        result = read_result(run, arm, seed, error) if ended else None
        record = msgspec.structs.replace(record, num_crashes=num_crashes, result=result)
        _write(run, record)
    if not record.result.error:
        for weights in run.glob("*.pt"):
            weights.unlink()
    return record.result


def _read(run: Path, begun: _ArmFile) -> _ArmFile:
    """Reads the record of a run; returns `begun` if there is none."""
    path = run / ARM_FILE
    if not path.is_file():
        return begun
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_ArmFile)
    except msgspec.DecodeError as error:
        raise RecipeError(f"{path} is not a result of an arm", value=error, remedy="remove the folder") from error
    if (stored.flags, stored.recipe) != (begun.flags, begun.recipe):
        raise RecipeError(
            "the folder holds this arm with other flags or another recipe",
            value=run,
            limit=" ".join(stored.flags),
            remedy="choose another folder with --out, or remove that one",
        )
    return stored


def _write(run: Path, content: _ArmFile) -> None:
    run.mkdir(parents=True, exist_ok=True)
    remove_leftovers(run / ARM_FILE)
    with replaced(run / ARM_FILE) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(content)))


def _train(arguments: Sequence[str], output: Path, until: TimeSlice) -> str:
    """Runs train.py.

    Returns:
        Why it failed; empty if it succeeded.

    Raises:
        StudyPaused: It was stopped before its end.
    """
    with output.open("wb") as stream:
        process = subprocess.Popen([sys.executable, str(TRAIN), *arguments], stdout=stream, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and not until.is_over:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
        finally:
            process.kill()  # has no effect on a process that has ended
            code = process.wait()
    # A signal to the process group may end train.py before it handles signals.
    if code in (EXIT_REQUEUE, -signal.SIGTERM) or (code != 0 and until.is_over):
        raise StudyPaused(f"the study was stopped; {_AGAIN}")
    return _error(code, output)


def _error(code: int, output: Path) -> str:
    """The error line of a failed run."""
    if code == 0:
        return ""
    if code < 0:
        return f"killed by signal {-code}"
    lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(_ERROR)]
    return (errors or lines or [f"exit code {code}"])[-1].strip()
