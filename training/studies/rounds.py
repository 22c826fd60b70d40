"""Rounds over the arms of a study: each arm in turn, then all again, so that a machine that slows down slows all alike.

A round is a seed. Rounds begin with another arm each, so that none always follows the same one.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import tyro
from rich.console import Console

from models.errors import BotanifyError, RecipeError
from training.device import choose_device
from training.manifest import Manifest
from training.recipe import HardwareRecipe
from training.studies.arms import Arm, ArmResult, run_arm

_NEVER: Final = "1000000000"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the studies of speed and size share."""

    data: Path
    """Folder written by training/prepare.py."""
    out: Path
    """Folder for runs, and for the result as JSON, Markdown and plots."""
    recipe: Path = Path("b4_5337")
    """The recipe that is changed: a TOML file or the name of one in training/recipes."""
    epochs: int = 3
    """Epochs of every run; the first is warm-up and counted apart."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds: each is one round over all runs."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is any."""
    stop_after_s: float = 0.0
    """Pause after so many seconds; the same command goes on. 0 runs to the end."""
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Flags of train.py for all runs: whatever follows `--` on the command line."""

    @property
    def on(self) -> Literal["cuda", "cpu"]:
        """The device that is trained on.

        Raises:
            BotanifyError: CUDA is asked for and there is none.
        """
        return "cuda" if choose_device(HardwareRecipe(device=self.device)).type == "cuda" else "cpu"

    def common(self, epochs: int | None = None) -> tuple[str, ...]:
        """Flags of every run: validated at the end and saved between epochs alone, so that nothing else is timed."""
        length = str(epochs or self.epochs)
        return (
            *("--data", str(self.data), "--device", self.on, "--expect-outputs", "0"),
            *("--epochs", length, "--validate-every-epochs", length, "--checkpoint-every-steps", _NEVER),
            *self.flags,
        )


def require_sense(plan: Plan, own: Sequence[str]) -> None:
    """Looks at a plan before hours are spent on it.

    Args:
        plan: What the command line says.
        own: Flags of train.py that the study itself decides.

    Raises:
        RecipeError: No seed, too few epochs, or a flag that the study decides.
        DataError: The data cannot be read.
    """
    if not plan.seeds or len(set(plan.seeds)) < len(plan.seeds):
        raise RecipeError("a study needs seeds, each once", value=plan.seeds, remedy="pass --seeds 0 1 2")
    if plan.epochs < 2:
        raise RecipeError(
            "the first epoch is warm-up, and another one is timed",
            value=f"--epochs {plan.epochs}",
            limit="at least 2",
            remedy="raise --epochs",
        )
    decided = {"--data", "--run", "--seed", "--epochs", "--device", *own}
    for flag in plan.flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in decided or name.replace("--no-", "--", 1) in decided:
            raise RecipeError("the study itself decides this flag", value=flag, remedy="leave it out behind `--`")
    Manifest(plan.data).rows_of("validation")


def run_rounds(plan: Plan, arms: Sequence[Arm], epochs: Sequence[int], part: str, deadline: float) -> list[ArmResult]:
    """Runs every arm with every seed, as far as that is not done yet.

    Args:
        plan: What all runs have in common.
        arms: The first is the one that the others are compared with.
        epochs: Of each arm.
        part: Name of the folder of these runs.
        deadline: When to pause, on the clock of `time.monotonic`.

    Returns:
        The results, by seed; those that failed hold their error.

    Raises:
        BotanifyError: The very first run failed, so that there is nothing to compare with.
        StudyPaused: The deadline came, or this process was asked to end.
    """
    console = Console(stderr=True)
    results: list[ArmResult] = []
    lengths = list(zip(arms, epochs, strict=True))
    for number, seed in enumerate(plan.seeds):
        first = number % len(arms)
        for arm, length in lengths[first:] + lengths[:first]:
            console.print(f"round {number + 1} of {len(plan.seeds)}: {arm.name}", highlight=False)
            folder = plan.out / "runs" / part
            result = run_arm(plan.recipe, arm, seed, folder, plan.common(length), deadline=deadline)
            if result.error and not results:
                raise BotanifyError(
                    f"the first run failed, and the others would be compared with it: {result.error.rstrip('.')}. "
                    f"Mend that, remove {folder} and start again."
                )
            results.append(result)
    return results


def deadline_of(plan: Plan) -> float:
    """When the study pauses, on the clock of `time.monotonic`."""
    return time.monotonic() + plan.stop_after_s if plan.stop_after_s > 0 else float("inf")
