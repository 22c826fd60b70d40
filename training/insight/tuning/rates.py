"""Learning rates for another batch size.

The square-root rule for Adam (Malladi et al. 2022): the noise of a gradient falls with the square root of the batch
size, and the length of an AdamW step hardly depends on the length of the gradient.
"""

import msgspec

from training.recipe import ScheduleRecipe

RULE = "the square root of the batch size, as derived for Adam (Malladi et al. 2022)"


class Rates(msgspec.Struct, frozen=True):
    """Peak learning rates."""

    backbone_lr: float
    head_lr: float
    reason: str


def rates_for(schedule: ScheduleRecipe, pictures_per_step: int) -> Rates:
    """Scales the learning rates of a schedule to another number of pictures per optimizer step.

    Args:
        schedule: Its rates are taken to be right for its own batch size times accumulation, on one rank.
        pictures_per_step: Pictures per optimizer step, over all ranks and accumulated batches.

    Returns:
        The rates, rounded to three digits.
    """
    before = schedule.batch_size * schedule.accumulate
    factor = (pictures_per_step / before) ** 0.5
    backbone, head = (float(f"{rate * factor:.3g}") for rate in (schedule.backbone_lr, schedule.head_lr))
    if pictures_per_step == before:
        return Rates(backbone, head, f"The rates are the recipe's: {before} pictures per step, as in the recipe.")
    reason = (
        f"The rates are {factor:.3g} times the recipe's, for {pictures_per_step} pictures per step instead of "
        f"{before}: they scale with {RULE}."
    )
    return Rates(backbone, head, reason)
