"""What the runs of the ablation say: every step of the ladder beside its parent, and a verdict on each claim."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from training.insight.studies.ablation.claims import Claim, Verdict, judge
from training.insight.studies.ablation.ladder import AMP, BASELINE, BATCH_16, COSINE, TWO_RATES, Step
from training.insight.studies.ablation.largest_batch import BatchLimit
from training.insight.studies.figures import (
    Figure,
    memory_gb,
    of_arm,
    pairs,
    pictures_per_s,
    points_more,
    short_run_per_s,
    times,
    top1_points,
)
from training.insight.studies.intervals import Interval
from training.insight.studies.results import ArmResult
from training.machine import Machine

Quantity = Literal["points", "speed", "memory", "largest_batch"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all arms have in common."""

    machine: Machine
    measured_on: str
    """The device, in words."""
    recipe: str
    data: str
    """Which pictures, in words."""
    flags: tuple[str, ...]
    """Flags of train.py that all arms have."""
    weights: str
    """Name of the file that all arms start from."""
    epochs: int
    seeds: tuple[int, ...]
    assumed_rate: float
    """The baseline's learning rate."""
    step_decay: str
    """The baseline's decay, in words."""
    hardware_px: int
    """Side of the pictures in the runs that judge speed and memory, px."""
    hardware_s: float
    """Seconds of training of each of them."""


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the ablation found."""

    setting: Setting
    device: Literal["cuda", "cpu"]
    steps: tuple[Step, ...]
    sweep: list[ArmResult] = []
    """The baseline at each rate, with a seed that no arm has."""
    best_rate: float | None = None
    equal_epochs: list[ArmResult] = []
    budget_s: float | None = None
    """Seconds of training that every arm has at equal time."""
    equal_time: list[ArmResult] = []
    hardware: list[ArmResult] = []
    """Short runs of the arms that the claims about speed and memory compare, at the claims' own picture size."""
    memory_limit_gb: float = 8.0
    """The card that is imitated for the largest batches, GB."""
    largest_batches: dict[Literal["off", "fp16"], BatchLimit] = {}
    """Precision -> what fits."""
    largest_batch_error: str = ""
    """Why the largest batches could not be found; empty where they were or nobody looked."""
    unfinished: str = ""
    """Why runs are missing; empty where none are."""


class Effect(msgspec.Struct, frozen=True):
    """What one step of the ladder changes, beside its parent; None where it was not measured."""

    step: Step
    points: Interval | None
    """Percentage points of validation top-1, at equal epochs."""
    points_equal_time: Interval | None
    speed: Interval | None
    """How many times as many pictures a second, at equal epochs."""
    memory: Interval | None
    """How many times as much GPU memory, at equal epochs."""


class _Comparison(msgspec.Struct, frozen=True):
    """A claim and the two arms that decide it."""

    claim: Claim
    quantity: Quantity
    arm: str = ""
    """Empty: the last step of the ladder."""
    against: str = ""
    """Empty: the arm's parent."""


# The shares of points are ranges as claimed; a single figure counts as right within a tenth.
_COMPARISONS: Final = (
    _Comparison(Claim("BatchNorm", "5 to 7 points", 5, 7, "points"), "points", BATCH_16),
    _Comparison(Claim("two learning rates", "2 to 3 points", 2, 3, "points"), "points", TWO_RATES),
    _Comparison(Claim("cosine annealing", "1 to 2 points", 1, 2, "points"), "points", COSINE),
    _Comparison(Claim("all together", "7.9 points", 7.11, 8.69, "points"), "points", against=BASELINE),
    _Comparison(Claim("speed", "3 times the speed", 2.7, 3.3, "times"), "speed", against=BASELINE),
    _Comparison(Claim("memory", "half the memory", 1.8, 2.2, "times less"), "memory", AMP),
    _Comparison(Claim("batch", "4 times the batch", 3.6, 4.4, "times"), "largest_batch"),
)


def effects(ablation: Ablation) -> list[Effect]:
    """Every step beside its parent, over the seeds that both have."""
    return [_effect(ablation, step) for step in ablation.steps if step.parent]


def verdicts(ablation: Ablation) -> list[Verdict]:
    """One verdict on each claim: on accuracy from the runs at equal epochs, on hardware from those made for it."""
    return [_verdict(ablation, comparison) for comparison in _COMPARISONS]


def hardware_arms(steps: Sequence[Step]) -> list[str]:
    """Names of the arms that the claims about speed and memory compare, in the order of the ladder."""
    compared = {name for each in _COMPARISONS if each.quantity in {"speed", "memory"} for name in _arms_of(steps, each)}
    return [step.name for step in steps if step.name in compared]


def point_differences(results: Sequence[ArmResult], step: Step) -> list[float]:
    """Percentage points of top-1 between a step and its parent, one a seed."""
    both = pairs(of_arm(results, step.name), of_arm(results, step.parent), top1_points)
    return [ours - theirs for ours, theirs in both.values()]


def trained_px(results: Sequence[ArmResult]) -> str:
    """The side of the pictures that runs end with, as "128 px"; empty where they differ or do not tell."""
    sides = {result.epochs[-1].side_px for result in results if result.epochs}
    return f"{sides.pop()} px" if len(sides) == 1 and None not in sides else ""


def _effect(ablation: Ablation, step: Step) -> Effect:
    equal, timed = ablation.equal_epochs, ablation.equal_time
    ours, theirs = of_arm(equal, step.name), of_arm(equal, step.parent)
    return Effect(
        step=step,
        points=points_more(ours, theirs),
        points_equal_time=points_more(of_arm(timed, step.name), of_arm(timed, step.parent)),
        speed=times(ours, theirs, pictures_per_s),
        memory=times(ours, theirs, memory_gb),
    )


def _verdict(ablation: Ablation, comparison: _Comparison) -> Verdict:
    claim, quantity = comparison.claim, comparison.quantity
    if ablation.device == "cpu" and quantity != "points":
        return Verdict(claim, "not measured", None, "CPU: the claim is about a GPU, its memory and mixed precision.")
    if quantity == "largest_batch":
        return _verdict_on_batches(ablation, claim)
    results = ablation.equal_epochs if quantity == "points" else ablation.hardware
    arm, against = _arms_of(ablation.steps, comparison)
    ours, theirs = of_arm(results, arm), of_arm(results, against)
    measured = points_more(ours, theirs) if quantity == "points" else _times(ours, theirs, quantity)
    if measured is None:
        return Verdict(claim, "not measured", None, _why_missing(results, arm, against))
    size = trained_px([*ours, *theirs])
    reason = f"{arm} against {against}{f' at {size}' if size else ''}, {_seeds(measured.num_values)}."
    return Verdict(claim, judge(claim, measured), measured, reason)


def _times(
    ours: Sequence[ArmResult], theirs: Sequence[ArmResult], quantity: Literal["speed", "memory"]
) -> Interval | None:
    """How many times as fast; or how many times less memory, as half the memory is two times less."""
    figure: Figure = short_run_per_s if quantity == "speed" else memory_gb
    return times(ours, theirs, figure) if quantity == "speed" else times(theirs, ours, figure)


def _arms_of(steps: Sequence[Step], comparison: _Comparison) -> tuple[str, str]:
    parents = {step.name: step.parent for step in steps}
    arm = comparison.arm or steps[-1].name
    return arm, comparison.against or parents.get(arm, "its parent")


def _verdict_on_batches(ablation: Ablation, claim: Claim) -> Verdict:
    full, mixed = (ablation.largest_batches.get(precision) for precision in ("off", "fp16"))
    if full is None or mixed is None:
        why = ablation.largest_batch_error or "Nobody looked for the largest batches, or not to the end."
        return Verdict(claim, "not measured", None, why)
    card = f"With {ablation.memory_limit_gb:g} GB, at {ablation.setting.hardware_px} px,"
    if not full.fits:
        return Verdict(claim, "not measured", None, f"{card} not even {full.fails} pictures a step fit in FP32.")
    measured = Interval(mixed.fits / full.fits, mixed.fits / full.fails, mixed.fails / full.fits, 1)
    reason = (
        f"{card} {full.fits} pictures a step fit in FP32 ({full.fails} do not) and {mixed.fits} in mixed precision "
        f"({mixed.fails} do not)."
    )
    return Verdict(claim, judge(claim, measured), measured, reason)


def _why_missing(results: Sequence[ArmResult], *names: str) -> str:
    if not results:
        return "Its runs were left out, or are not done yet."
    for result in results:
        if result.arm.name in names and result.error:
            return f"{result.arm.name} failed: {result.error}"
    return f"No seed has both {names[0]} and {names[1]} at their end."


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
