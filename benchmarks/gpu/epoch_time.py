"""Program: the speed of a run after its first epoch, and the time of an epoch of a large data set by it.

python benchmarks/gpu/epoch_time.py RUN [--pictures 1600000] --out FILE.json
"""

import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro

from benchmarks.result import Measured, write_result
from models.errors import DataError
from models.program import run_program
from training.monitor.log import read_log, without_repeats


class EpochTime(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a run after its first epoch, and the time of an epoch of a large data set by it."""

    run: tyro.conf.Positional[Path]
    """Folder of the run, on this machine."""
    pictures: int = 1_600_000
    """Pictures of the large data set."""
    out: Path
    """File for the result, JSON."""


class Result(Measured, frozen=True, kw_only=True):
    """The content of the result file."""

    recipe: dict[str, Any]
    """Sections of the run's recipe that decide on its speed."""
    num_epochs: int
    """Epochs that were measured; the first one, which compiles and chooses kernels, is left out."""
    num_pictures: int
    seconds: float
    """Of these epochs, with the starts of their loaders and without validation."""
    per_s: float
    """Pictures a second in that time."""
    per_s_running: float
    """Pictures a second from the first batch of each epoch on."""
    waiting: float
    """Share of the time from the first batch on in which steps waited for the loader."""
    memory_gb: float | None
    """Peak GPU memory; None on a CPU."""
    pictures: int
    """Pictures of the large data set."""
    epoch_h: float
    """Hours that they would take by `per_s`."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(EpochTime, epoch_time, description=__doc__)


def epoch_time(command: EpochTime) -> Result:
    """Computes, prints and writes the result.

    Raises:
        DataError: The folder holds no run, or the run has fewer than two epochs.
    """
    events = without_repeats(read_log(command.run))
    epochs = [event for event in events if event["event"] == "epoch"][1:]
    if not epochs:
        raise DataError("the run is too short", value=command.run, limit="two epochs", remedy="train it longer")
    seconds = sum(epoch["seconds"] for epoch in epochs)
    num_pictures = round(sum(epoch["pictures_per_s"] * epoch["seconds"] for epoch in epochs))
    uses = [epoch["use"] for epoch in epochs]
    running_s = sum(use["seconds"] for use in uses)
    recipe = next(event["recipe"] for event in events if event["event"] == "start")
    result = Result(
        recipe={name: recipe[name] for name in ("network", "pictures", "augment", "hardware")}
        | {"batch_size": recipe["schedule"]["batch_size"], "workers": recipe["data"]["workers"]},
        num_epochs=len(epochs),
        num_pictures=num_pictures,
        seconds=round(seconds, 2),
        per_s=round(num_pictures / seconds, 1),
        per_s_running=round(sum(use["pictures"] for use in uses) / running_s, 1),
        waiting=round(sum(use["stages"].get("wait", 0.0) for use in uses) / running_s, 4),
        memory_gb=max((epoch["memory_gb"] for epoch in epochs if epoch["memory_gb"] is not None), default=None),
        pictures=command.pictures,
        epoch_h=round(command.pictures / (num_pictures / seconds) / 3600, 3),
    )
    write_result(result, markdown(result), command.out)
    return result


def markdown(result: Result) -> str:
    """The result in one sentence."""
    return (
        f"{result.machine}: {result.num_epochs} epochs, {result.num_pictures:,} pictures in {result.seconds:.0f} s: "
        f"{result.per_s:.1f}/s. An epoch of {result.pictures:,} pictures takes {result.epoch_h:.2f} h."
    )


if __name__ == "__main__":
    main()
