"""What a trial measures, and its result."""

from typing import Final, Literal

import msgspec

from training.recipe import KnobRole, Precision, Recipe, knobs_with

MAX_MEMORY_SHARE: Final = 0.9
"""Share of the GPU memory that a setting may use; the rest is for later growth, such as larger pictures."""

Outcome = Literal["ran", "does_not_fit", "too_slow", "crashed"]


class TrialSetting(msgspec.Struct, frozen=True):
    """The knobs with `KnobRole.TUNED`, each with its name in the recipe."""

    batch_size: int
    """Pictures per step on each rank."""
    amp: Precision
    channels_last: bool
    compile: bool


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of measuring a setting."""

    setting: TrialSetting
    outcome: Outcome = "ran"
    pictures_per_s: float = 0.0
    """Median over the timed windows, on the slowest rank."""
    memory_gb: float | None = None
    """Peak GPU memory, including other programs on the card, GB; None on a CPU."""
    memory_share: float | None = None
    """The same as a share of what may be used."""
    warmup_s: float = 0.0
    """Seconds before the speed was steady: kernel selection, compilation."""
    note: str = ""
    """Why it failed."""

    @property
    def fits(self) -> bool:
        """Whether it ran within the memory limit."""
        return self.outcome == "ran" and (self.memory_share is None or self.memory_share <= MAX_MEMORY_SHARE)


def setting_of(recipe: Recipe) -> TrialSetting:
    """The setting that a recipe holds."""
    return TrialSetting(
        **{knob: getattr(getattr(recipe, section), knob) for section, knob in knobs_with(KnobRole.TUNED)}
    )


def with_setting(recipe: Recipe, setting: TrialSetting) -> Recipe:
    """The recipe with another setting, and without gradient accumulation."""
    replace = msgspec.structs.replace
    changed = replace(recipe, schedule=replace(recipe.schedule, accumulate=1))
    for section, knob in knobs_with(KnobRole.TUNED):
        changed = replace(changed, **{section: replace(getattr(changed, section), **{knob: getattr(setting, knob)})})
    return changed
