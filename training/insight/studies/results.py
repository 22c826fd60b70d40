"""The result of a run, read from the log that train.py wrote."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from training.monitor.log import LOG_FILE, Event, read_log, without_repeats


class Arm(msgspec.Struct, frozen=True):
    """One way to train."""

    name: str
    flags: tuple[str, ...]
    """Flags of train.py, in addition to those of all arms."""
    explains: str
    """What the arm shows, in a sentence or two."""


class EpochResult(msgspec.Struct, frozen=True):
    """The figures of an epoch."""

    epoch: int
    """Number of the epoch, from 1."""
    seconds: float
    """Training time without validation."""
    pictures_per_s: float
    """Of the process that ended the epoch; 0 if it resumed after the last step and only validated."""
    top1: float | None
    """Validation top-1 in [0, 1]; None if the epoch was not validated."""
    num_pictures: int | None
    """Validation pictures."""
    loss: float | None
    """Mean validation loss, nats."""
    memory_gb: float | None
    """Peak GPU memory, GB; None on a CPU."""
    side_px: int | None
    """Side of the training pictures, px."""
    warm_up: bool
    """Whether it was the first epoch of its process, which includes kernel selection and compilation."""


class ArmResult(msgspec.Struct, frozen=True):
    """The result of an arm with one seed."""

    arm: Arm
    seed: int
    epochs: list[EpochResult]
    error: str = ""
    """Why the run failed; empty if it did not."""
    num_starts: int = 1
    """Processes that trained it: 1 plus the number of interruptions."""

    @property
    def top1(self) -> float | None:
        """Validation top-1 of the last epoch. The best epoch would be selected on the pictures it is measured on."""
        return self.epochs[-1].top1 if self.epochs and not self.error else None

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def steady_epochs(self) -> list[EpochResult]:
        """The epochs that are used for timing: no warm-up and no interruption."""
        return [epoch for epoch in self.epochs if not epoch.warm_up]


def read_result(run: Path, arm: Arm, seed: int, error: str = "") -> ArmResult:
    """Reads a run's log."""
    events = without_repeats(read_log(run)) if (run / LOG_FILE).is_file() else []
    num_starts = max(sum(event["event"] == "start" for event in events), 1)
    return ArmResult(arm, seed, _epochs(events), error, num_starts)


def _epochs(events: Sequence[Event]) -> list[EpochResult]:
    """The epochs in order.

    The epoch event of an interrupted epoch has only the time since the restart; the checkpoint after it has the total.
    """
    found: dict[int, EpochResult] = {}
    last, before, warm = None, 0.0, False
    for event in events:
        if event["event"] == "start":
            warm = False
        elif event["event"] == "epoch":
            last = _epoch(event, warm_up=not warm)
            found[last.epoch] = last
            warm = warm or last.pictures_per_s > 0
        elif event["event"] == "checkpoint" and last is not None:
            found[last.epoch] = msgspec.structs.replace(last, seconds=event["seconds"] - before)
            last, before = None, event["seconds"]
    return [found[number] for number in sorted(found)]


def _epoch(event: Event, *, warm_up: bool) -> EpochResult:
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
        side_px=event.get("side_px"),
        warm_up=warm_up,
    )
