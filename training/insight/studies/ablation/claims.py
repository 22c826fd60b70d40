"""Claims, what was measured about them, and the verdict that follows by rule.

The rule, from a claimed range, the value that means "no effect" (0 points, or 1 time), the mean of the differences
between two arms over the seeds, and its 95 % interval:

* confirmed: the mean lies in the claimed range, and the whole interval lies between half and twice the claimed effect;
* larger: the whole interval lies above the claimed range;
* smaller: the whole interval lies below the claimed range and above no effect;
* refuted: the whole interval lies below the claimed range, and no effect is in it or above it;
* undecided: anything else, and whatever was run with a single seed.

The interval is that of the seeds. Points are widened by what the number of validation pictures leaves open at the
least; which pictures changed is not known, so another set of pictures may move them further.
"""

from typing import Literal

import msgspec

from training.insight.studies.intervals import Interval

Word = Literal["confirmed", "smaller", "larger", "refuted", "undecided", "not measured"]
Unit = Literal["points", "times", "times less"]


class Claim(msgspec.Struct, frozen=True):
    """Something that was said about the recipe."""

    name: str
    said: str
    low: float
    high: float
    unit: Unit

    @property
    def no_effect(self) -> float:
        """What would be measured if nothing were true of the claim."""
        return 0.0 if self.unit == "points" else 1.0


class Verdict(msgspec.Struct, frozen=True):
    """What became of a claim."""

    claim: Claim
    word: Word
    measured: Interval | None
    reason: str
    """What was compared, or why nothing was measured."""


def judge(claim: Claim, measured: Interval) -> Word:
    """The verdict, by the rule at the head of this file."""
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
