"""Planted results of the ablation with known effects."""

from itertools import pairwise

import msgspec

from tests.training.insight.studies.planted import SEEDS, epoch, result
from training.insight.studies.ablation_page import Ablation
from training.insight.studies.ladder import arms, ladder
from training.insight.studies.results import ArmResult

NOISE = (-0.2, 0.1, 0.1)  # points, by seed
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


def ablation(device="cuda", seeds=SEEDS, top1=TOP1, noise=NOISE, failing=(), recipe_px=128, **changes):
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
    return Ablation(device=device, steps=steps, recipe_px=recipe_px, **(facts | changes))


def run_at_once(recipe, arm, seed, folder, common, *, until, max_seconds=None):
    """Replaces run_arm: large batches, a rate of 1e-4 and long training give a better top-1."""
    flags = dict(pairwise((*common, *arm.flags)))  # the last occurrence of a flag counts
    batch, epochs = int(flags["--batch-size"]), int(flags["--epochs"])
    top1 = 0.5 + 0.01 * batch - abs(float(flags["--backbone-lr"]) - 1e-4) + 0.001 * seed + 0.01 * epochs
    done = [epoch(n, 16 / batch, 10.0 * batch, top1, judged=40) for n in range(epochs)]
    return ArmResult(arm, seed, [msgspec.structs.replace(each, warm_up=each.epoch == 0) for each in done])
