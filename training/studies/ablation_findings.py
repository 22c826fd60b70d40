"""What the runs of the ablation say: every step of the ladder beside its parent, and a verdict on each claim."""

import statistics
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from training.machine import Machine
from training.studies.arms import ArmResult
from training.studies.ladder import AMP, BASELINE, BATCH_16, COSINE, TWO_RATES, Step
from training.studies.verdicts import Claim, Interval, Verdict, judge, points_interval, ratio_interval

Quantity = Literal["points", "speed", "memory", "largest_batch"]


class BatchLimit(msgspec.Struct, frozen=True):
    """Where a card's memory ends; both sizes were tried."""

    fits: int
    """Largest batch that ran; 0: none did."""
    fails: int
    """Smallest batch that did not."""


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
    memory_limit_gb: float = 8.0
    """The card that is imitated for the largest batches, GB."""
    largest_batches: dict[Literal["off", "fp16"], BatchLimit] = {}
    """Precision -> what fits."""
    unfinished: str = ""
    """Why runs are missing; empty where none are."""


class Effect(msgspec.Struct, frozen=True):
    """What one step of the ladder changes, beside its parent; None where it was not measured."""

    step: Step
    points: Interval | None
    """Percentage points of validation top-1, at equal epochs."""
    points_equal_time: Interval | None
    speed: Interval | None
    """How many times as many pictures a second."""
    memory: Interval | None
    """How many times as much GPU memory."""


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
    """One verdict on each claim, from the runs at equal epochs."""
    return [_verdict(ablation, comparison) for comparison in _COMPARISONS]


def top1_points(result: ArmResult) -> float | None:
    """Validation top-1 at the end, in percent."""
    return None if result.top1 is None else 100 * result.top1


def pictures_per_s(result: ArmResult) -> float | None:
    """Median over the epochs behind the warm-up."""
    if result.error or not result.epochs:
        return None
    return statistics.median(epoch.pictures_per_s for epoch in result.steady_epochs)


def memory_gb(result: ArmResult) -> float | None:
    """Most GPU memory held, GB."""
    known = [epoch.memory_gb for epoch in result.epochs if epoch.memory_gb is not None]
    return max(known) if known and not result.error else None


def of_arm(results: Sequence[ArmResult], name: str) -> list[ArmResult]:
    """The results of one arm, by seed."""
    return sorted((result for result in results if result.arm.name == name), key=lambda result: result.seed)


def point_differences(results: Sequence[ArmResult], step: Step) -> list[float]:
    """Percentage points of top-1 between a step and its parent, one a seed."""
    return [ours - theirs for ours, theirs in _pairs(results, step.name, step.parent, top1_points)]


def _effect(ablation: Ablation, step: Step) -> Effect:
    def times(value: Callable[[ArmResult], float | None]) -> Interval | None:
        pairs = _pairs(ablation.equal_epochs, step.name, step.parent, value)
        return ratio_interval([ours / theirs for ours, theirs in pairs]) if pairs else None

    return Effect(
        step=step,
        points=_points(ablation.equal_epochs, step.name, step.parent),
        points_equal_time=_points(ablation.equal_time, step.name, step.parent),
        speed=times(pictures_per_s),
        memory=times(memory_gb),
    )


def _verdict(ablation: Ablation, comparison: _Comparison) -> Verdict:
    claim, quantity = comparison.claim, comparison.quantity
    if ablation.device == "cpu" and quantity != "points":
        return Verdict(claim, "not measured", None, "CPU: the claim is about a GPU, its memory and mixed precision.")
    if quantity == "largest_batch":
        return _verdict_on_batches(ablation, claim)
    arm, against = _arms_of(ablation, comparison)
    if quantity == "points":
        measured = _points(ablation.equal_epochs, arm, against)
    else:
        measured = _times(ablation.equal_epochs, arm, against, quantity)
    if measured is None:
        return Verdict(claim, "not measured", None, _why_missing(ablation, arm, against))
    return Verdict(claim, judge(claim, measured), measured, f"{arm} against {against}, {_seeds(measured.num_values)}.")


def _points(results: Sequence[ArmResult], arm: str, against: str) -> Interval | None:
    pairs = _pairs(results, arm, against, top1_points)
    judged = [one.epochs[-1].num_pictures or 0 for one in of_arm(results, arm) if one.top1 is not None]
    return points_interval([ours - theirs for ours, theirs in pairs], min(judged)) if pairs else None


def _times(
    results: Sequence[ArmResult], arm: str, against: str, quantity: Literal["speed", "memory"]
) -> Interval | None:
    """How many times as fast; or how many times less memory, as half the memory is two times less."""
    if quantity == "memory":
        arm, against = against, arm
    pairs = _pairs(results, arm, against, pictures_per_s if quantity == "speed" else memory_gb)
    return ratio_interval([ours / theirs for ours, theirs in pairs]) if pairs else None


def _arms_of(ablation: Ablation, comparison: _Comparison) -> tuple[str, str]:
    steps = {step.name: step for step in ablation.steps}
    arm = comparison.arm or ablation.steps[-1].name
    return arm, comparison.against or (steps[arm].parent if arm in steps else "its parent")


def _verdict_on_batches(ablation: Ablation, claim: Claim) -> Verdict:
    full, mixed = (ablation.largest_batches.get(precision) for precision in ("off", "fp16"))
    if full is None or mixed is None:
        return Verdict(claim, "not measured", None, "The largest batches are not known yet.")
    if not full.fits:
        reason = f"With {ablation.memory_limit_gb:g} GB not even {full.fails} pictures a step fit in FP32."
        return Verdict(claim, "not measured", None, reason)
    measured = Interval(mixed.fits / full.fits, mixed.fits / full.fails, mixed.fails / full.fits, 1)
    reason = (
        f"With {ablation.memory_limit_gb:g} GB, {full.fits} pictures a step fit in FP32 ({full.fails} do not) and "
        f"{mixed.fits} in mixed precision ({mixed.fails} do not)."
    )
    return Verdict(claim, judge(claim, measured), measured, reason)


def _pairs(
    results: Sequence[ArmResult], arm: str, against: str, value: Callable[[ArmResult], float | None]
) -> list[tuple[float, float]]:
    """(value of the arm, value of the other) for every seed that gives both: the same seed sees the same pictures."""
    others = {result.seed: value(result) for result in of_arm(results, against)}
    both = [(value(result), others.get(result.seed)) for result in of_arm(results, arm)]
    return [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]


def _why_missing(ablation: Ablation, *names: str) -> str:
    for result in ablation.equal_epochs:
        if result.arm.name in names and result.error:
            return f"{result.arm.name} failed: {result.error}"
    return f"No seed has both {names[0]} and {names[1]} at their end."


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
