"""Arms of a study: training runs that differ in a few flags, each in a process of its own.

A study may be stopped at any time and started again: what is finished is not run again, what was interrupted goes on.
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
_ALWAYS: Final = ("--auto-resume", "--keep", "1", "--no-tensorboard")
_TOLD: Final = "error ("  # begins the line with which every program of this project ends that fails
_MOST_CRASHES: Final = 2  # of a run; chance seldom strikes twice, and a cause that stays would stop the study for ever
_POLL_S: Final = 0.2
# A checkpoint or a short validation that is under way may be finished first. Whoever asks this process to end seldom
# waits for longer than a minute, and the report is still to be written; an epoch is saved before it is judged.
_GRACE_S: Final = 40.0
_AGAIN: Final = "start the same command again to go on."


class StudyPaused(BotanifyError):
    """The study was stopped, or its time is over; started again, it goes on."""

    code = "paused"


class Slice:
    """How long a study may go on now: until its time is over, or until this process is asked to end.

    Inside a `with` block SIGTERM only sets a flag, so that what was found can still be written.

    Args:
        seconds: From here on; 0 sets no limit.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._ends = time.monotonic() + seconds if seconds > 0 else math.inf
        self._asked = StopSignal()

    def __enter__(self) -> Self:
        self._asked.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._asked.__exit__(kind, error, at)

    @property
    def is_over(self) -> bool:
        """Whether no run may begin, and one that is under way is to stop."""
        return self._asked.received or time.monotonic() >= self._ends


class _ArmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a run's folder: which run it is, and its result once there is one."""

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
    until: Slice,
    seconds: float | None = None,
) -> ArmResult:
    """Runs train.py for one arm and one seed, unless that is done already.

    A run that ends with an error of its own keeps it as its result, and the study goes on; remove its folder to try it
    again. A run that crashes or is killed from outside goes on from its checkpoint, once; the second time its error
    stays, too. Weights are removed at the end.

    Args:
        recipe: The recipe of all arms.
        arm: What is special about this one.
        seed: Seed of the run.
        folder: Folder of the study's runs.
        common: Flags of train.py for all arms.
        until: When to stop for now.
        seconds: Stop after so much training, with a validation; default: the recipe's end.

    Raises:
        RecipeError: The folder holds this arm with other flags or another recipe.
        StudyPaused: The slice is over.
    """
    run = folder / f"{arm.name}-seed{seed}"
    limit = () if seconds is None else ("--max-seconds", f"{seconds:.3f}")
    flags = (*common, *arm.flags, *limit, "--seed", str(seed))
    plain = msgspec.json.decode(msgspec.json.encode(recipe_to_plain(read_recipe(recipe))))
    record = _read(run, _ArmFile(flags, plain))
    while record.result is None:
        if until.is_over:
            raise StudyPaused(f"the time is over; {_AGAIN}")
        _write(run, record)
        error = _train((str(recipe), *flags, "--run", str(run), *_ALWAYS), run / OUTPUT_FILE, until)
        num_crashes = record.num_crashes + (error != "" and not error.startswith(_TOLD))
        ended = not error or error.startswith(_TOLD) or num_crashes == _MOST_CRASHES
        result = read_result(run, arm, seed, error) if ended else None
        record = msgspec.structs.replace(record, num_crashes=num_crashes, result=result)
        _write(run, record)
    if not record.result.error:
        for weights in run.glob("*.pt"):
            weights.unlink()
    return record.result


def _read(run: Path, begun: _ArmFile) -> _ArmFile:
    """What the folder holds of a run; the run as it begins where there is nothing yet."""
    path = run / ARM_FILE
    if not path.is_file():
        return begun
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


def _train(arguments: Sequence[str], output: Path, until: Slice) -> str:
    """Runs train.py.

    Returns:
        Why it failed; empty where it came to its end.

    Raises:
        StudyPaused: It was told to stop before its end.
    """
    with output.open("wb") as told:
        process = subprocess.Popen([sys.executable, str(TRAIN), *arguments], stdout=told, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and not until.is_over:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
        finally:
            process.kill()  # does nothing to a process that has ended
            code = process.wait()
    # A signal to the whole group may end train.py before it listens to signals.
    if code in (EXIT_REQUEUE, -signal.SIGTERM) or (code != 0 and until.is_over):
        raise StudyPaused(f"the study was stopped; {_AGAIN}")
    return _error(code, output)


def _error(code: int, output: Path) -> str:
    """Why a run failed, in the program's own line."""
    if code == 0:
        return ""
    if code < 0:
        return f"ended from outside by signal {-code}"
    lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(_TOLD)]
    return (told or lines or [f"exit code {code}"])[-1].strip()
