"""What is tried, and what came of it."""

from typing import Final, Literal

import msgspec

from training.recipe import KnobRole, Precision, Recipe, knobs_with

MOST_MEMORY: Final = 0.9
"""Share of the memory that a setting may take: the rest is for what grows later, such as another picture size."""

Outcome = Literal["ran", "does_not_fit", "too_slow", "crashed"]


class Setting(msgspec.Struct, frozen=True):
    """The knobs with `KnobRole.TUNED`, each named as in the recipe."""

    batch_size: int
    """Pictures a step, on each rank."""
    amp: Precision
    channels_last: bool
    compile: bool


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting did."""

    setting: Setting
    outcome: Outcome = "ran"
    pictures_per_s: float = 0.0
    """Median of the windows; of several ranks, the slowest one's."""
    spread: float = 0.0
    """Fastest window less slowest, as a share of the median."""
    memory_gb: float | None = None
    """Most GPU memory that was taken, with everything else on the card, GB; None on a CPU."""
    memory_share: float | None = None
    """The same, as a share of what may be used."""
    use: float | None = None
    """Share of the time that the GPU, or the cores that torch may use, were busy; None if nobody could say."""
    warmup_s: float = 0.0
    """Before the speed was steady: choosing kernels, compiling."""
    note: str = ""
    """Why it did not run."""

    @property
    def fits(self) -> bool:
        """Whether it ran, and within the memory that a setting may take."""
        return self.outcome == "ran" and (self.memory_share is None or self.memory_share <= MOST_MEMORY)


def setting_of(recipe: Recipe) -> Setting:
    """The setting that a recipe has now."""
    return Setting(**{knob: getattr(getattr(recipe, section), knob) for section, knob in knobs_with(KnobRole.TUNED)})


def with_setting(recipe: Recipe, setting: Setting) -> Recipe:
    """The recipe with another setting, and every step moving the optimizer."""
    replace = msgspec.structs.replace
    changed = replace(recipe, schedule=replace(recipe.schedule, accumulate=1))
    for section, knob in knobs_with(KnobRole.TUNED):
        changed = replace(changed, **{section: replace(getattr(changed, section), **{knob: getattr(setting, knob)})})
    return changed
