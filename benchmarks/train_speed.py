"""Program: measures how many pictures a second our training loop and timm's process.

python benchmarks/train_speed.py [--arms ours timm ...] [--rounds 5] [--out FILE.json]

All loops run in one process and take turns of the same number of steps. Each round has another order, and ratios are
taken within a round, so that a busy machine or a warm GPU slows all loops alike. Compilation and the choice of kernels
are not timed. The pictures are noise in host memory.
"""

import sys
import time
from pathlib import Path
from typing import Final, Literal, get_args

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import torch

from benchmarks.result import Measured, in_turns, quotients, spread, table, write_result
from benchmarks.train_speed_arms import Arm, ArmName, open_arm
from models.program import run_program
from training.engine.device import choose_device
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


class Result(Measured, frozen=True, kw_only=True):
    """The result of the program."""

    setting: TrainSpeed
    threads: int
    """CPU threads of PyTorch."""
    rates: list[Rate]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(TrainSpeed, measure, description=__doc__)


def measure(command: TrainSpeed) -> Result:
    """Runs all loops, prints a table and, with `out`, writes the result."""
    device = choose_device(command.recipe.hardware)
    arms = {
        name: open_arm(name, command.recipe, command.num_outputs, device, timm_fused=command.timm_fused)
        for name in command.arms
    }
    rates = _run(command, arms, device)
    setting = msgspec.structs.replace(command, out=None)  # paths mean nothing on another machine
    result = Result(setting=setting, threads=torch.get_num_threads(), rates=rates)
    write_result(result, markdown(result), command.out)
    return result


def markdown(result: Result) -> str:
    """The result as a table: median and, in brackets, range of the rounds."""
    setting = result.setting
    per_s: dict[str, list[float]] = {rate.arm: rate.per_s for rate in result.rates}
    rows = []
    for rate in result.rates:
        peer = rate.arm.replace("ours", "timm")
        against = spread(quotients(rate.per_s, per_s[peer]), 2) if peer != rate.arm and peer in per_s else ""
        rows.append([rate.arm, spread(rate.per_s), against, f"{rate.warmup_s:.1f}"])
    return (
        f"{result.machine}: {setting.architecture}, {setting.picture_px} px, batch {setting.batch_size}, AMP "
        f"{setting.amp}; {setting.rounds} interleaved rounds of {setting.steps} steps. Median [range].\n\n"
        f"{table(['loop', 'pictures/s', 'against timm', 'first turn, s'], rows)}"
    )


def _run(command: TrainSpeed, arms: dict[ArmName, Arm], device: torch.device) -> list[Rate]:
    """Measures all loops in turns; the first round is for warm-up."""
    seconds: dict[ArmName, list[float]] = {name: [] for name in arms}
    for number, name in in_turns(arms, command.rounds + 1):
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
        rates.append(Rate(name, per_s, warmup_s))
    return rates


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
