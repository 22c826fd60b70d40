"""Learning rates for another number of pictures a step.

A recipe's rates were found for its own batch. AdamW's steps are about as long as the rate, whatever the gradient's
length, and its gradient's noise falls with the root of the batch: so do the rates rise (Malladi et al. 2022). Plain
gradient descent follows the gradient itself, and its rates rise with the batch (Goyal et al. 2017).
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from training.recipe import ScheduleRecipe

Rule = Literal["square_root", "linear"]
GROWTH: Final[Mapping[Rule, str]] = {
    "square_root": "the square root of the batch, as derived for Adam (Malladi et al. 2022)",
    "linear": "the batch, as found for SGD (Goyal et al. 2017)",
}
"""Rule -> what the rates grow with, in words."""
_POWER: Final[Mapping[Rule, float]] = {"square_root": 0.5, "linear": 1.0}


class Rates(msgspec.Struct, frozen=True):
    """Peak learning rates, and why these."""

    backbone_lr: float
    head_lr: float
    sentence: str


def rates_for(schedule: ScheduleRecipe, pictures_per_step: int, rule: Rule = "square_root") -> Rates:
    """Rates for another number of pictures a step, on all ranks and in all accumulated batches together.

    Args:
        schedule: Its rates are taken to be right for its own batch, accumulation included, on one rank.
        pictures_per_step: Pictures between two moves of the optimizer.
        rule: How they grow.

    Returns:
        The rates, to three digits.
    """
    before = schedule.batch_size * schedule.accumulate
    factor = (pictures_per_step / before) ** _POWER[rule]
    backbone, head = (float(f"{rate * factor:.3g}") for rate in (schedule.backbone_lr, schedule.head_lr))
    if pictures_per_step == before:
        return Rates(backbone, head, f"The rates stay: {before} pictures a step, as in the recipe.")
    sentence = (
        f"The rates are {factor:.3g} times the recipe's, for {pictures_per_step} pictures a step instead of {before}: "
        f"they grow with {GROWTH[rule]}."
    )
    return Rates(backbone, head, sentence)
