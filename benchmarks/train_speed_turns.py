"""Lets training loops of one process take turns, so that a busy machine or a warm GPU slows all alike."""

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
_POLL_S: Final = 0.2
_IDLE_SHARE: Final = 0.1  # of a core, for all loader processes together
Name = TypeVar("Name", bound=str)


class TurnTimes(msgspec.Struct, frozen=True):
    """The duration of the turns of one loop."""

    warmup_s: float
    """The first turn with its lead-in, s; it is not counted."""
    seconds: list[float]
    """Each counted turn, without its lead-in, s."""


def take_turns(
    arms: Mapping[Name, Arm], lead_in: Mapping[Name, int], *, rounds: Iterable[int], steps: int, device: torch.device
) -> dict[Name, TurnTimes]:
    """Runs each loop once in each round, and measures how long it takes.

    Args:
        arms: The loops.
        lead_in: Untimed steps of each loop at the start of each turn.
        rounds: Numbers of the rounds; round 0 is for warm-up.
        steps: Timed steps of a turn.
        device: Device of the loops.
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
    return {name: TurnTimes(warmup_s[name], seconds[name]) for name in arms}


def order_of(number: int, names: Sequence[Name]) -> list[Name]:
    """The order of the loops in a round: random, but the same in each run of the program."""
    return random.Random(number).sample(names, len(names))


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(arm: Arm, steps: int, device: torch.device) -> float:
    wait_for(device)
    began = time.perf_counter()
    arm.take(steps)
    wait_for(device)
    return time.perf_counter() - began


def _wait_for_loaders() -> None:
    """Waits until the loader processes have filled their queues; else they would slow the next loop."""
    loaders = psutil.Process().children(recursive=True)
    ends, used = time.monotonic() + _MOST_WAIT_S, _cpu_s(loaders)
    while loaders and time.monotonic() < ends:
        time.sleep(_POLL_S)
        before, used = used, _cpu_s(loaders)
        if used - before <= _IDLE_SHARE * _POLL_S:
            return


def _cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU time of the processes that still run, s."""
    taken = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            taken += times.user + times.system
    return taken
