"""Program: measures how many pictures a second our training loop and timm's process.

python benchmarks/train_speed.py [--arms ours timm ...] [--rounds 5] [--out FILE.json]

All loops run in one process and take turns of the same number of steps. Each round has another order, and ratios are
taken within a round, so that a busy machine or a warm GPU slows all loops alike. Compilation and the choice of kernels
are not timed. The pictures are noise in host memory.
"""

import random
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, get_args

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import torch
from rich.progress import track

from benchmarks.result import spread, table, write_result
from benchmarks.train_speed_arms import Arm, ArmName, open_arm
from models.program import run_program
from training.engine.device import choose_device
from training.machine import Machine, this_machine
from training.recipe import (
    AmpPrecision,
    Count,
    HardwareRecipe,
    NetworkRecipe,
    PictureRecipe,
    Recipe,
    ScheduleRecipe,
    SidePx,
)

_ALL_ARMS: Final[tuple[ArmName, ...]] = get_args(ArmName)
_LEAD_IN: Final = 2  # untimed steps before each turn: the clock rate of an idle GPU sinks
# Memory traffic of a training picture of 380 px through EfficientNet-B4 in 16-bit precision, GB, counted from the
# network's layers: 2.4 to 2.7 without fusion, of which the smaller gives the lower share; 1.6 with all possible fusion.
_MOVED_GB: Final = {"eager": 2.4, "compiled": 1.6}
_ROOFLINE_PX: Final = 380
_COPY_BYTES: Final = 4 * 2**30


class TrainSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Compares training loops."""

    arms: tuple[ArmName, ...] = _ALL_ARMS
    """Loops to compare; default: all."""
    architecture: str = "efficientnet_b4"
    """Name of a timm model."""
    num_outputs: Count = 5337
    """Width of the classifier."""
    picture_px: SidePx = 380
    """Side of the pictures, px."""
    batch_size: Count = 128
    """Pictures in a batch."""
    amp: AmpPrecision = "fp16"
    """Mixed precision; fp16 needs CUDA."""
    channels_last: bool = True
    """Store activations as NHWC, in both loops."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is a GPU."""
    rounds: Count = 5
    """Rounds that are counted, after one for warm-up."""
    steps: Count = 30
    """Steps of each loop in a round."""
    log_every_steps: Count = 20
    """Steps between two readings of our losses; timm reads each one."""
    timm_fused: bool = False
    """Let timm's optimizer use fused kernels; its train.py does so only with --opt-kwargs fused=True."""
    out: Path | None = None
    """File for the result, JSON."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of both loops."""
        return Recipe(
            network=NetworkRecipe(architecture=self.architecture, weights="none", norms="leave"),
            schedule=ScheduleRecipe(batch_size=self.batch_size),
            pictures=PictureRecipe(picture_px=self.picture_px),
            hardware=HardwareRecipe(device=self.device, amp=self.amp, channels_last=self.channels_last),
        )


class Rate(msgspec.Struct, frozen=True):
    """The speed of one loop."""

    arm: ArmName
    per_s: list[float]
    """Pictures per second, of each round."""
    warmup_s: float
    """Time of the first turn, with compilation and the choice of kernels, s."""
    roofline: float | None
    """Median as a share of what the memory bandwidth allows; None if that is unknown."""


class Result(msgspec.Struct, frozen=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    setting: TrainSpeed
    threads: int
    """CPU threads of PyTorch."""
    copy_gb_per_s: float | None
    """Memory bandwidth of the GPU, measured by copying, reads and writes together, GB/s; None on a CPU."""
    rates: list[Rate]

    def ratios(self, faster: ArmName, slower: ArmName) -> list[float]:
        """Speed of one loop relative to another, round by round; empty if one was left out."""
        per_s = {rate.arm: rate.per_s for rate in self.rates}
        return [a / b for a, b in zip(per_s.get(faster, []), per_s.get(slower, []), strict=False)]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(TrainSpeed, measure, description=__doc__)


def measure(command: TrainSpeed) -> Result:
    """Runs all loops, prints a table and, with `out`, writes the result."""
    device = choose_device(command.recipe.hardware)
    bandwidth = _copy_gb_per_s(device)
    arms = {
        name: open_arm(name, command.recipe, command.num_outputs, device, timm_fused=command.timm_fused)
        for name in command.arms
    }
    rates = _run(command, arms, device, bandwidth)
    setting = msgspec.structs.replace(command, out=None)  # paths mean nothing on another machine
    measured_on = datetime.now(UTC).date().isoformat()
    result = Result(this_machine(), measured_on, setting, torch.get_num_threads(), bandwidth, rates)
    write_result(result, markdown(result), command.out)
    return result


def markdown(result: Result) -> str:
    """The result as a table: median and, in brackets, range of the rounds."""
    setting = result.setting
    rows = []
    for rate in result.rates:
        ratios = result.ratios(rate.arm, _peer(rate.arm)) if rate.arm.startswith("ours") else []
        share = "" if rate.roofline is None else f"{rate.roofline:.0%}"
        rows.append([rate.arm, spread(rate.per_s), spread(ratios, 2) if ratios else "", share, f"{rate.warmup_s:.1f}"])
    return (
        f"{result.machine}: {setting.architecture}, {setting.picture_px} px, batch {setting.batch_size}, AMP "
        f"{setting.amp}; {setting.rounds} interleaved rounds of {setting.steps} steps. Median [range].\n\n"
        f"{table(['loop', 'pictures/s', 'against timm', 'of the bandwidth', 'first turn, s'], rows)}"
    )


def _run(command: TrainSpeed, arms: dict[ArmName, Arm], device: torch.device, bandwidth: float | None) -> list[Rate]:
    """Measures all loops in turns; the first round is for warm-up."""
    seconds: dict[ArmName, list[float]] = {name: [] for name in arms}
    for number in track(range(command.rounds + 1), description="rounds", disable=not sys.stderr.isatty()):
        for name in order_of(number, list(arms)):
            began = time.perf_counter()
            arms[name].take(_LEAD_IN)
            if number > 0:
                wait_for(device)
                began = time.perf_counter()
            arms[name].take(command.steps)
            wait_for(device)
            seconds[name].append(time.perf_counter() - began)
    rates = []
    for name, (warmup_s, *turns) in seconds.items():
        per_s = [command.steps * command.batch_size / each for each in turns]
        rates.append(Rate(name, per_s, warmup_s, _roofline(command, name, statistics.median(per_s), bandwidth)))
    return rates


def order_of(number: int, names: Sequence[ArmName]) -> list[ArmName]:
    """The order of the loops in a round: random, but the same in each run of the program."""
    return random.Random(number).sample(names, len(names))


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _copy_gb_per_s(device: torch.device, repeats: int = 10) -> float | None:
    """The memory bandwidth of a GPU: the best of several copies."""
    if device.type != "cuda":
        return None
    size = min(_COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, seconds = torch.empty_like(source), []
    for _ in range(repeats):
        wait_for(device)
        began = time.perf_counter()
        target.copy_(source)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size / min(seconds) / 1e9


def _roofline(command: TrainSpeed, name: ArmName, per_s: float, bandwidth: float | None) -> float | None:
    """The speed as a share of what the memory bandwidth allows; known for one network in 16-bit precision."""
    if bandwidth is None or command.architecture != "efficientnet_b4" or command.amp == "off":
        return None
    gigabytes = _MOVED_GB["compiled" if "-compiled" in name else "eager"] * (command.picture_px / _ROOFLINE_PX) ** 2
    return per_s * gigabytes / bandwidth


def _peer(name: ArmName) -> ArmName:
    """timm's loop with the same options."""
    return next(peer for peer in _ALL_ARMS if peer == name.replace("ours", "timm"))


if __name__ == "__main__":
    main()
