"""Training loops of one process that take turns, so that a busy machine or a warm card slows all alike."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
import psutil  # type: ignore[import-untyped]
import torch

from benchmarks.train_speed_arms import Arm

_MOST_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.2
_IDLE: Final = 0.1  # of a core, all loader processes together
Name = TypeVar("Name", bound=str)


class Taken(msgspec.Struct, frozen=True):
    """How long the turns of one loop took."""

    warmup_s: float
    """The first turn with what leads in to it, s; it does not count."""
    seconds: list[float]
    """Each turn that counts, without what leads in to it, s."""


def take_turns(
    arms: Mapping[Name, Arm], lead_in: Mapping[Name, int], *, rounds: Iterable[int], steps: int, device: torch.device
) -> dict[Name, Taken]:
    """Lets every loop take its turn in every round.

    Args:
        arms: The loops.
        lead_in: Steps of each that come before its clock starts, in every turn.
        rounds: Their numbers; number 0 warms up.
        steps: Steps of a turn.
        device: Where the loops train.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in arms}
    warmup_s: dict[Name, float] = {}
    for number in rounds:
        for name in order_of(number, list(arms)):
            _wait_for_loaders()
            began = time.perf_counter()
            arms[name].take(lead_in[name])
            taken = _timed(arms[name], steps, device)
            if number == 0:
                warmup_s[name] = time.perf_counter() - began
            else:
                seconds[name].append(taken)
    return {name: Taken(warmup_s[name], seconds[name]) for name in arms}


def order_of(number: int, names: Sequence[Name]) -> list[Name]:
    """The order of the loops in a round: at random, so that none always follows the same one; the same every time."""
    return random.Random(number).sample(names, len(names))


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(arm: Arm, steps: int, device: torch.device) -> float:
    wait_for(device)
    began = time.perf_counter()
    arm.take(steps)
    wait_for(device)
    return time.perf_counter() - began


def _wait_for_loaders() -> None:
    """Lets loader processes fill their queues after a turn: they would take the cores from the loop that is next."""
    loaders = psutil.Process().children(recursive=True)
    ends, used = time.monotonic() + _MOST_WAIT_S, _cpu_s(loaders)
    while loaders and time.monotonic() < ends:
        time.sleep(_LOOK_S)
        before, used = used, _cpu_s(loaders)
        if used - before <= _IDLE * _LOOK_S:
            return


def _cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Processor time of the processes that still run, s."""
    taken = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            taken += times.user + times.system
    return taken
