"""What a run of a study gave, read from the diary that train.py wrote."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from training.monitor.log import LOG_FILE, Event, read_log, without_repeats


class Arm(msgspec.Struct, frozen=True):
    """One way to train."""

    name: str
    flags: tuple[str, ...]
    """Flags of train.py, added to those that all arms of the study have."""
    explains: str
    """What the arm is there to show, in a sentence or two."""


class EpochResult(msgspec.Struct, frozen=True):
    """What an epoch took and gave."""

    epoch: int
    """Epochs done, from 1 on."""
    seconds: float
    """Of training alone, without validation."""
    pictures_per_s: float
    """Of the process that ended the epoch; 0 where it only judged what another had trained."""
    top1: float | None
    """Share of the validation pictures that are named rightly, in [0, 1]; None where none was judged."""
    num_pictures: int | None
    """Validation pictures."""
    loss: float | None
    """Mean validation loss, nats."""
    memory_gb: float | None
    """Most GPU memory held, GB; None on a CPU."""
    side_px: int | None
    """Side of the training pictures, px; None where the diary does not tell."""
    warm_up: bool
    """Whether it is the first that its process trained, in which kernels are chosen and compiled; an epoch that went on
    after an interruption is."""


class ArmResult(msgspec.Struct, frozen=True):
    """What an arm gave with one seed."""

    arm: Arm
    seed: int
    epochs: list[EpochResult]
    seconds_to_first_step: float | None
    """From the start of training to the end of the first step; kernels are chosen and compiled in it."""
    error: str = ""
    """Why the run failed; empty where it did not."""
    num_starts: int = 1
    """Processes that trained it: one more for every interruption."""
    readings_per_s: float | None = None
    """Pictures/s between two readings of the losses, median; tells the speed of a run that ends in its first epoch."""

    @property
    def top1(self) -> float | None:
        """Validation top-1 at the end; never that of the best epoch, which would be picked by what it is judged on."""
        return self.epochs[-1].top1 if self.epochs and not self.error else None

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def steady_epochs(self) -> list[EpochResult]:
        """The epochs to time an arm by: those that neither warm up nor were interrupted."""
        return [epoch for epoch in self.epochs if not epoch.warm_up]


def read_result(run: Path, arm: Arm, seed: int, error: str = "") -> ArmResult:
    """Reads what a run has written into its diary so far."""
    events = without_repeats(read_log(run)) if (run / LOG_FILE).is_file() else []
    return ArmResult(
        arm,
        seed,
        _epochs(events),
        _first_step_s(events),
        error,
        num_starts=max(sum(event["event"] == "start" for event in events), 1),
        readings_per_s=_readings_per_s(events),
    )


def _epochs(events: Sequence[Event]) -> list[EpochResult]:
    """The epochs in order.

    An epoch that was interrupted is timed from its last beginning on; the checkpoint behind it has the whole time.
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


def _first_step_s(events: Sequence[Event]) -> float | None:
    """Losses are read every few steps: those behind the first are taken off at the pace of later ones."""
    began = None
    for event in events:
        if event["event"] == "start":
            began = event
        elif event["event"] == "losses" and began is not None:
            steps = event["step"] - began["step"]
            pace = _seconds_a_step(events) if steps > 1 else 0.0
            return None if pace is None else float(max(event["time"] - began["time"] - (steps - 1) * pace, 0.0))
    return None


def _seconds_a_step(events: Sequence[Event]) -> float | None:
    """The pace behind the warm-up; where there is no such epoch, that between two readings."""
    paces = list(_paces_of_epochs(events)) or list(_paces_of_readings(events))
    return statistics.median(paces) if paces else None


def _paces_of_epochs(events: Sequence[Event]) -> Iterator[float]:
    """Seconds a step of every epoch behind the first that a process trained."""
    before = None
    for event in events:
        if event["event"] == "start":
            before = None
        elif event["event"] == "epoch" and event["pictures_per_s"] > 0:
            if before is not None and event["step"] > before:
                yield event["seconds"] / (event["step"] - before)
            before = event["step"]


def _paces_of_readings(events: Sequence[Event]) -> Iterator[float]:
    """Seconds a step between two readings with nothing but steps between them."""
    before = None
    for event in events:
        if event["event"] == "losses":
            if before is not None and event["step"] > before["step"]:
                yield (event["time"] - before["time"]) / (event["step"] - before["step"])
            before = event
        elif event["event"] in {"start", "epoch", "checkpoint"}:
            before = None


def _readings_per_s(events: Sequence[Event]) -> float | None:
    schedules = [event["recipe"]["schedule"] for event in events if "recipe" in event]
    paces = [pace for pace in _paces_of_readings(events) if pace > 0]  # the diary's clock may be set back
    if not schedules or not paces:
        return None
    return float(schedules[-1]["batch_size"] * schedules[-1]["accumulate"] / statistics.median(paces))
