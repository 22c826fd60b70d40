"""Learning rates for another number of pictures a step.

A recipe's rates were found for its own batch. AdamW's steps are about as long as the rate, whatever the gradient's
length, and its gradient's noise falls with the root of the batch: so do the rates rise (Malladi et al. 2022). Plain
gradient descent follows the gradient itself, and its rates rise with the batch (Goyal et al. 2017).
"""

from typing import Final, Literal

import msgspec
import torch

from training.recipe import ScheduleRecipe

Rule = Literal["square_root", "linear"]
_POWER: Final[dict[Rule, float]] = {"square_root": 0.5, "linear": 1.0}
_REASON: Final[dict[Rule, str]] = {
    "square_root": "the square-root rule for Adam and AdamW (Malladi et al. 2022), since they divide by the gradient's "
    "own size; the linear rule is that of plain gradient descent",
    "linear": "the linear rule for plain gradient descent (Goyal et al. 2017); it holds after a warm-up of some epochs",
}


class Rates(msgspec.Struct, frozen=True):
    """Peak learning rates, and why these."""

    backbone_lr: float
    head_lr: float
    rule: Rule
    sentence: str


def rule_for(optimizer: type[torch.optim.Optimizer]) -> Rule:
    """The rule by which an optimizer's rate grows with the batch: the root for those that divide by its noise."""
    return "linear" if issubclass(optimizer, torch.optim.SGD) else "square_root"


def scaled_rate(rate: float, ratio: float, rule: Rule) -> float:
    """A rate for `ratio` times as many pictures a step, to three digits."""
    return float(f"{rate * ratio ** _POWER[rule]:.3g}")


def rates_for(schedule: ScheduleRecipe, pictures_per_step: int, rule: Rule = "square_root") -> Rates:
    """Rates for another number of pictures a step, on all ranks and in all accumulated batches together.

    Args:
        schedule: Its rates are taken to be right for its own batch, accumulation included, on one rank.
        pictures_per_step: Pictures between two moves of the optimizer.
        rule: How they grow.
    """
    before = schedule.batch_size * schedule.accumulate
    ratio = pictures_per_step / before
    backbone, head = (scaled_rate(rate, ratio, rule) for rate in (schedule.backbone_lr, schedule.head_lr))
    if ratio == 1:
        return Rates(backbone, head, rule, f"The rates stay: {before} pictures a step, as in the recipe.")
    sentence = (
        f"The rates are {ratio ** _POWER[rule]:.3g} times the recipe's, for {pictures_per_step} pictures a step "
        f"instead of {before}, by {_REASON[rule]}."
    )
    return Rates(backbone, head, rule, sentence)
