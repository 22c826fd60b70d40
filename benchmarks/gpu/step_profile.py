"""Program: how fast a GPU trains, and where the time goes, in eight minutes.

python benchmarks/gpu/step_profile.py [--seconds 400] [--data DATA] --out FILE.json

Steps of our engine on generated pictures, in fp16 and bf16, for several batch sizes, eager and compiled; then the
kernels of one step, and the loader alone. The result is written after each measurement, so a program that is killed
leaves those before. What no longer fits into the time is listed as left out.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.result import Measured, table, write_result
from benchmarks.train_speed import TrainSpeed, wait_for
from benchmarks.train_speed_arms import generated_batches, open_engine
from models.atomic_file import write_bytes
from models.cores import cores
from models.program import run_program
from training.dataset.manifest import Manifest
from training.engine.device import choose_device
from training.engine.step import Engine
from training.loading.data import training_loader
from training.loading.negatives import RunInput
from training.recipe import Compile, DataRecipe, HardwareRecipe, Recipe

_LARGEST_KERNELS: Final = 30
_LOADER: Final = "loader alone"
_LEAST_S: Final = 3.0  # of a measurement
_WARMUP_STEPS: Final = 5


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Measures training steps on a GPU."""

    architecture: str = "efficientnet_b4"
    """Name of a timm model."""
    num_outputs: int = 5337
    """Width of the classifier."""
    picture_px: int = 380
    """Side of the pictures, px."""
    batch_sizes: tuple[int, ...] = (16, 128, 64, 256)
    """Pictures in a batch, the most wanted first."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is a GPU."""
    data: Path | None = None
    """Folder that training/prepare.py wrote, for the loader alone; default: the loader is left out."""
    workers: int = cores()
    """Processes of the loader."""
    seconds: float = 400.0
    """Begin no further measurement after this time."""
    out: Path
    """File for the result, JSON."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is switched on in a measurement."""

    batch_size: int
    amp: Literal["fp16", "bf16", "off"] = "fp16"
    compiled: Compile = "off"

    @property
    def name(self) -> str:
        """Such as "fp16, batch 16, compiled default"."""
        more = [f"compiled {self.compiled}"] if self.compiled != "off" else []
        return ", ".join([self.amp, f"batch {self.batch_size}", *more])


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    name: str
    per_s: float | None = None
    """Pictures a second; None if it failed."""
    host_ms: float | None = None
    """Time in which the host starts the work of a step, ms; equal to the time of the step if the host is the limit."""
    memory_gb: float | None = None
    """Peak GPU memory; None on a CPU."""
    warmup_s: float | None = None
    """Time of the first steps, with compilation and the choice of kernels, s."""
    failed: str | None = None


class Kernel(msgspec.Struct, frozen=True):
    """What one kind of kernel took of a step."""

    name: str
    calls: int
    ms: float


class Result(Measured, frozen=True, kw_only=True):
    """The content of the result file."""

    setting: StepProfile
    speeds: list[Speed]
    """Of steps, and of the loader alone."""
    kernels: list[Kernel]
    left_out: list[str]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(StepProfile, measure, description=__doc__)


def measure(command: StepProfile) -> Result:
    """Measures until the time is over, and writes the result after each measurement."""
    end = time.monotonic() + command.seconds
    setting = msgspec.structs.replace(command, data=None, out=Path(command.out.name))  # paths mean nothing elsewhere
    result = Result(setting=setting, speeds=[], kernels=[], left_out=[])
    device = choose_device(HardwareRecipe(device=command.device))
    jobs: list[tuple[str, Callable[[], None]]] = [
        (case.name, lambda case=case: result.speeds.append(_speed(command, case, device)))  # type: ignore[misc]
        for case in cases(command, device)
    ]
    jobs.insert(4, ("kernels of a step", lambda: _look_inside(command, device, result)))
    if command.data is not None:
        jobs.insert(2, (_LOADER, lambda: result.speeds.append(_loader(command))))
    for name, job in jobs:
        if time.monotonic() < end:
            job()
        else:
            result.left_out.append(name)
        write_bytes(command.out, msgspec.json.encode(result, enc_hook=str))
        print(f"{name}: {'left out' if name in result.left_out else 'done'}", flush=True)
    write_result(result, markdown(result), command.out)
    return result


def cases(command: StepProfile, device: torch.device) -> list[Case]:
    """What is measured, the most wanted first; a CPU has no fp16."""
    kinds: tuple[Literal["fp16", "bf16"], ...] = ("fp16", "bf16") if device.type == "cuda" else ("bf16",)
    small, large, *sizes = command.batch_sizes
    eager = [Case(batch_size=size, amp=amp) for amp in kinds for size in (small, large)]
    compiled = [
        Case(batch_size=size, amp=kinds[0], compiled=compiled)
        for compiled in ("default", "reduce-overhead")
        for size in (large, small)
    ]
    rest = [Case(batch_size=size, amp=amp) for amp in kinds for size in sizes]
    return [*eager, *compiled, *rest]


def _engine(command: StepProfile, case: Case, device: torch.device) -> tuple[Engine, Iterator[Any]]:
    base = TrainSpeed(
        architecture=command.architecture,
        num_outputs=command.num_outputs,
        picture_px=command.picture_px,
        batch_size=case.batch_size,
        amp=case.amp,
        device=command.device,
    ).recipe
    recipe: Recipe = msgspec.structs.replace(
        base,
        hardware=msgspec.structs.replace(base.hardware, compile=case.compiled),
    )
    engine = open_engine(recipe, command.num_outputs, device)
    return engine, generated_batches(recipe, command.num_outputs, device, torch.channels_last)


def _speed(command: StepProfile, case: Case, device: torch.device) -> Speed:
    """Measures one case; running out of memory and a failed compilation are results."""
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        engine, batches = _engine(command, case, device)
        began = time.perf_counter()
        _take(engine, batches, range(_WARMUP_STEPS), device)
        warmup_s = time.perf_counter() - began
        num_steps, host_s, all_s = _WARMUP_STEPS, 0.0, 0.0
        while all_s < _LEAST_S:
            host, whole = _take(engine, batches, range(num_steps, num_steps + 10), device)
            num_steps, host_s, all_s = num_steps + 10, host_s + host, all_s + whole
    except Exception as error:  # whatever one case cannot do, the next one may
        return Speed(name=case.name, failed=f"{type(error).__name__}: {error}"[:300])
    steps = num_steps - _WARMUP_STEPS
    return Speed(
        name=case.name,
        per_s=round(steps * case.batch_size / all_s, 1),
        host_ms=round(1e3 * host_s / steps, 2),
        memory_gb=round(torch.cuda.max_memory_allocated(device) / 1e9, 2) if device.type == "cuda" else None,
        warmup_s=round(warmup_s, 1),
    )


def _take(engine: Engine, batches: Iterator[Any], steps: range, device: torch.device) -> tuple[float, float]:
    """Takes the steps; returns the seconds until the host had started all work, and until it was done."""
    wait_for(device)
    began = time.perf_counter()
    for step in steps:
        engine.micro_step(*next(batches), step=step)
    started = time.perf_counter() - began
    engine.read()
    wait_for(device)
    return started, time.perf_counter() - began


def _look_inside(command: StepProfile, device: torch.device, result: Result) -> None:
    """The kernels of one eager step at the second batch size."""
    case = cases(command, device)[1]
    engine, batches = _engine(command, case, device)
    _take(engine, batches, range(_WARMUP_STEPS), device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        _take(engine, batches, range(_WARMUP_STEPS, _WARMUP_STEPS + 1), device)
    kernels = [
        Kernel(event.key[:160], event.count, round(event.self_device_time_total / 1e3, 3))
        for event in profiler.key_averages()
        if event.device_type.name == "CUDA"
    ]
    result.kernels.extend(sorted(kernels, key=lambda kernel: -kernel.ms)[:_LARGEST_KERNELS])


def _loader(command: StepProfile) -> Speed:
    """Pictures a second of the loader with all its processes, after its first batches."""
    assert command.data is not None
    recipe = Recipe(data=DataRecipe(data=command.data, workers=command.workers))
    loader, batches = training_loader(Manifest(command.data), RunInput.of(recipe), pin=torch.cuda.is_available())
    batches.side_px = command.picture_px
    num_pictures, began = 0, 0.0
    for epoch in itertools.count():
        batches.epoch = epoch
        for pixels, _ in loader:
            num_pictures += len(pixels)
            began = began or time.perf_counter()
        if time.perf_counter() - began > 2 * _LEAST_S:
            break
    return Speed(name=_LOADER, per_s=round(num_pictures / (time.perf_counter() - began), 1))


def markdown(result: Result) -> str:
    """The result as tables."""
    rows = []
    for speed in result.speeds:
        figures = [speed.per_s, speed.host_ms, speed.memory_gb]
        failed = [speed.failed.partition("\n")[0][:60], "", ""] if speed.failed else None
        cells = failed or ["" if value is None else f"{value:,.1f}" for value in figures]
        rows.append([speed.name, *cells])
    columns = ["steps", "pictures/s", "host, ms a step", "memory, GB"]
    largest = [[f"`{each.name}`", str(each.calls), f"{each.ms:.2f}"] for each in result.kernels[:10]]
    kernels = f"\n{table(['largest kernels', 'calls', 'ms'], largest)}\n" if largest else ""
    left_out = f"\nLeft out for lack of time: {'; '.join(result.left_out)}.\n" if result.left_out else ""
    return f"{result.machine}.\n\n{table(columns, rows)}\n{kernels}{left_out}"


if __name__ == "__main__":
    main()
