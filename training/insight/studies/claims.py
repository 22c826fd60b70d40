"""The claims about the recipe, and a verdict on each by a fixed rule.

The rule uses the mean of the paired differences between two arms, its 95 % interval, the claimed range, and the value
that means "no effect" (0 points, or 1 time):

* confirmed: the mean lies in the claimed range, and the whole interval between half and twice the claimed effect;
* larger: the whole interval lies above the claimed range;
* smaller: the whole interval lies below the claimed range and above no effect;
* refuted: the whole interval lies below the claimed range and contains no effect or lies below it;
* undecided: otherwise, always with a single seed, and if both arms have less than twice the top-1 of chance.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from training.insight.studies.figures import memory_gb, of_arm, pictures_per_s, points_more, times, trained_px
from training.insight.studies.intervals import Interval
from training.insight.studies.ladder import AMP, BASELINE, BATCH_16, COSINE, TWO_RATES, Step
from training.insight.studies.results import ArmResult

Word = Literal["confirmed", "smaller", "larger", "refuted", "undecided", "not measured"]
Unit = Literal["points", "times", "times less"]


class Claim(msgspec.Struct, frozen=True):
    """A claim about the recipe, and the two arms that decide it."""

    name: str
    text: str
    low: float
    high: float
    quantity: Literal["points", "speed", "memory"]
    arm: str = ""
    """Empty: the last step of the ladder."""
    against: str = ""
    """Empty: the arm's parent."""

    @property
    def no_effect(self) -> float:
        """The value without an effect."""
        return 0.0 if self.quantity == "points" else 1.0

    @property
    def unit(self) -> Unit:
        """Unit of the claimed range."""
        return {"points": "points", "speed": "times", "memory": "times less"}[self.quantity]  # type: ignore[return-value]


class ClaimVerdict(msgspec.Struct, frozen=True):
    """The verdict on a claim."""

    claim: Claim
    word: Word
    measured: Interval | None
    reason: str
    """What was compared, or why nothing was measured."""


# A claim with a single figure gets a range of a tenth around it.
CLAIMS: Final = (
    Claim("BatchNorm", "5 to 7 points", 5, 7, "points", BATCH_16),
    Claim("two learning rates", "2 to 3 points", 2, 3, "points", TWO_RATES),
    Claim("cosine annealing", "1 to 2 points", 1, 2, "points", COSINE),
    Claim("all together", "7.9 points", 7.11, 8.69, "points", against=BASELINE),
    Claim("speed", "3 times the speed", 2.7, 3.3, "speed", against=BASELINE),
    Claim("memory", "half the memory", 1.8, 2.2, "memory", AMP),
)


def judge(claim: Claim, measured: Interval) -> Word:
    """Applies the rule in this module's docstring."""
    low, high, none = measured.low, measured.high, claim.no_effect
    if low is None or high is None:
        return "undecided"
    half, twice = none + (claim.low - none) / 2, none + 2 * (claim.high - none)
    if claim.low <= measured.mean <= claim.high and low >= half and high <= twice:
        return "confirmed"
    if low > claim.high:
        return "larger"
    if high < claim.low:
        return "smaller" if low > none else "refuted"
    return "undecided"


def verdict(
    claim: Claim,
    steps: Sequence[Step],
    results: Sequence[ArmResult],
    *,
    device: Literal["cuda", "cpu"],
    recipe_px: int,
    chance: float,
) -> ClaimVerdict:
    """The verdict on a claim from the runs at equal epochs.

    Claims about speed and memory are about a GPU and the recipe's own picture size; only such runs decide them.
    `chance` is the top-1 of random answers: arms near it have learned too little to show an effect.
    """
    if device == "cpu" and claim.quantity != "points":
        return ClaimVerdict(claim, "not measured", None, "The claim is about a GPU, and this is a CPU.")
    arm = claim.arm or steps[-1].name
    against = claim.against or next((step.parent for step in steps if step.name == arm), "its parent")
    ours, theirs = of_arm(results, arm), of_arm(results, against)
    side_px = trained_px([*ours, *theirs])
    if claim.quantity != "points" and side_px not in {None, recipe_px}:
        reason = f"The claim is about {recipe_px} px, and the arms were trained at {side_px} px."
        return ClaimVerdict(claim, "not measured", None, reason)
    measured = _measure(claim, ours, theirs)
    if measured is None:
        return ClaimVerdict(claim, "not measured", None, _why_missing([*ours, *theirs], arm, against))
    size = f" at {side_px} px" if side_px else ""
    seeds = "1 seed" if measured.num_values == 1 else f"{measured.num_values} seeds"
    reason = f"{arm} against {against}{size}, {seeds}."
    if claim.quantity == "points" and _near_chance([*ours, *theirs], chance):
        return ClaimVerdict(claim, "undecided", measured, f"{reason} Both are near chance ({100 * chance:.1f} %).")
    return ClaimVerdict(claim, judge(claim, measured), measured, reason)


def _near_chance(results: Sequence[ArmResult], chance: float) -> bool:
    return max(result.top1 or 0.0 for result in results) < 2 * chance


def _measure(claim: Claim, ours: Sequence[ArmResult], theirs: Sequence[ArmResult]) -> Interval | None:
    if claim.quantity == "points":
        return points_more(ours, theirs)
    return times(ours, theirs, pictures_per_s) if claim.quantity == "speed" else times(theirs, ours, memory_gb)


def _why_missing(results: Sequence[ArmResult], *names: str) -> str:
    for result in results:
        if result.error:
            return f"{result.arm.name} failed: {result.error}"
    return f"There is no seed with both {names[0]} and {names[1]}."
