"""Made-up results of the ablation, in which every effect is known."""

from itertools import pairwise

from training.machine import Gpu, Machine
from training.studies.ablation_findings import Ablation, BatchLimit, Setting
from training.studies.arms import ArmResult, EpochResult
from training.studies.ladder import arms, ladder

SEEDS = (0, 1, 2)
NOISE = (-0.2, 0.1, 0.1)  # points, by seed; of two arms it differs by no more than 0.05
TOP1 = {  # percent, with BatchNorm worth 6 points, two rates 2.5, the cosine nothing
    "directml_baseline": 69.0,
    "best_rate": 71.0,
    "frozen_norms": 74.0,
    "accumulated": 70.5,
    "groups_of_4": 70.5,
    "batch_16": 76.5,
    "amp": 76.5,
    "two_rates_3x": 79.0,
    "two_rates_10x": 78.0,
    "cosine": 79.0,
    "hardware": 79.0,
}
SPEED = {"amp": 300, "two_rates_3x": 300, "two_rates_10x": 300, "cosine": 300, "hardware": 300}
MEMORY_GB = {"amp": 5.0, "two_rates_3x": 5.0, "two_rates_10x": 5.0, "cosine": 5.0, "hardware": 5.0, "batch_16": 10.0}
MACHINE = Machine(
    processor="drawn",
    num_cores=2,
    memory_gb=8.0,
    system="Linux",
    python="3.11",
    libraries={},
    git_commit="0123456",
    gpus=(Gpu("Drawn GPU", 8.0),),
)
SETTING = Setting(
    machine=MACHINE,
    measured_on="Drawn GPU",
    recipe="directml_baseline",
    data="drawn, 3 outputs",
    flags=(),
    weights="herbarium.pt",
    epochs=2,
    seeds=SEEDS,
    assumed_rate=3e-5,
    step_decay="times 0.1 every 1 epochs",
)


def result(arm, seed, *, top1, speed=100.0, memory_gb=4.0, error=""):
    """Two epochs, of which the first is slow."""
    epochs = [
        EpochResult(1, 30.0, speed / 3, top1 / 200, 10_000, 2.0, memory_gb),
        EpochResult(2, 1000 / speed, speed, top1 / 100, 10_000, 1.0, memory_gb),
    ]
    return ArmResult(arm, seed, [] if error else epochs, 5.0, error)


def ablation(device="cuda", seeds=SEEDS, top1=TOP1, noise=NOISE, failing=(), **changes):
    """Every arm of a device with every seed."""
    steps = ladder(device)
    runs = []
    for number, arm in enumerate(arms(steps, 3e-5, 1e-4)):
        for seed in seeds:
            points = top1[arm.name] + noise[seed] + 0.05 * ((number + seed) % 2)
            speed, memory_gb = SPEED.get(arm.name, 100) + seed, MEMORY_GB.get(arm.name, 4.0)
            error = "error (diverged): lost" if arm.name in failing else ""
            memory_gb = memory_gb if device == "cuda" else None
            runs.append(result(arm, seed, top1=points, speed=speed, memory_gb=memory_gb, error=error))
    limits = {"off": BatchLimit(8, 9), "fp16": BatchLimit(32, 33)}
    facts = {"equal_epochs": runs, "equal_time": runs, "budget_s": 40.0, "best_rate": 1e-4, "largest_batches": limits}
    return Ablation(setting=SETTING, device=device, steps=steps, **(facts | changes))


def run_at_once(recipe, arm, seed, folder, common, *, seconds=None, deadline=None):
    """In the place of run_arm: large batches, a rate of 1e-4 and long training are good, and FP32 takes much memory."""
    flags = dict(pairwise((*common, *arm.flags)))  # of a flag that comes twice the last counts
    batch, epochs = int(flags["--batch-size"]), int(flags["--epochs"])
    if "--memory-gb" in flags and batch > (13 if flags["--amp"] == "off" else 50):
        return ArmResult(arm, seed, [], None, "error (out_of_memory): too large.")
    top1 = 0.5 + 0.01 * batch - abs(float(flags["--backbone-lr"]) - 1e-4) + 0.001 * seed + 0.01 * epochs
    return ArmResult(
        arm, seed, [EpochResult(n, 16 / batch, 10.0 * batch, top1, 40, 1.0, None) for n in range(epochs)], 1
    )
