"""Made-up results of the ablation, in which every effect is known."""

from itertools import pairwise

import msgspec

from tests.training.insight.studies.planted import MACHINE, SEEDS, epoch, result
from training.insight.studies.ablation.findings import Ablation, Setting, hardware_arms
from training.insight.studies.ablation.ladder import arms, ladder
from training.insight.studies.ablation.largest_batch import BatchLimit
from training.insight.studies.results import ArmResult

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
    hardware_px=380,
    hardware_s=20.0,
)


def short_runs(steps, seeds=SEEDS, speed=SPEED, memory_gb=MEMORY_GB):
    """The runs at the recipe's own size, each with the figures of its arm; they end in their first epoch."""
    runs = []
    for arm in arms(steps, 3e-5, 1e-4):
        for seed in seeds if arm.name in hardware_arms(steps) else ():
            only = epoch(1, 20.0, 1.0, 0.1, memory_gb=memory_gb.get(arm.name, 4.0), side_px=380)
            runs.append(ArmResult(arm, seed, [only], 5.0, readings_per_s=speed.get(arm.name, 100.0) + seed))
    return runs


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
    facts = {"equal_epochs": runs, "equal_time": runs, "budget_s": 40.0, "best_rate": 1e-4}
    if device == "cuda":
        facts["hardware"] = short_runs(steps, seeds)
        facts["largest_batches"] = {"off": BatchLimit(8, 9), "fp16": BatchLimit(32, 33)}
    return Ablation(setting=SETTING, device=device, steps=steps, **(facts | changes))


def run_at_once(recipe, arm, seed, folder, common, *, until, seconds=None):
    """In the place of run_arm: large batches, a rate of 1e-4 and long training are good, and FP32 takes much memory."""
    flags = dict(pairwise((*common, *arm.flags)))  # of a flag that comes twice the last counts
    batch, epochs = int(flags["--batch-size"]), int(flags["--epochs"])
    if "--memory-gb" in flags and batch > (13 if flags["--amp"] == "off" else 50):
        return ArmResult(arm, seed, [], None, "error (out_of_memory): too large.")
    side_px, speed = int(flags.get("--picture-px", 32)), (2.0 if "fp16" in arm.flags else 1.0) * batch
    if seconds is not None and epochs > 100:  # a short run for speed and memory ends in its first epoch
        only = epoch(1, seconds, 1.0, 0.1, memory_gb=1.0 + batch / 16, side_px=side_px)
        return ArmResult(arm, seed, [only], 1.0, readings_per_s=speed + 0.001 * seed)
    top1 = 0.5 + 0.01 * batch - abs(float(flags["--backbone-lr"]) - 1e-4) + 0.001 * seed + 0.01 * epochs
    done = [epoch(n, 16 / batch, 10.0 * batch, top1, judged=40, side_px=side_px) for n in range(epochs)]
    return ArmResult(arm, seed, [msgspec.structs.replace(each, warm_up=each.epoch == 0) for each in done], 1.0)
