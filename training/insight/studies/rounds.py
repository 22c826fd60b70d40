"""Rounds over the arms of a study: each arm in turn, then all again, so that a machine that slows down slows all alike.

A round is a seed, which also draws the order of the arms: what an arm leaves behind, such as a warm card or files in
memory, falls to another one in the next round.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
import tyro
from rich.console import Console

from models.errors import BotanifyError, RecipeError
from training.dataset.manifest import Manifest
from training.engine.device import choose_device
from training.insight.studies.arms import Slice, StudyPaused, run_arm
from training.insight.studies.results import Arm, ArmResult
from training.recipe import HardwareRecipe

_NEVER: Final = "1000000000"
AnyReport = TypeVar("AnyReport")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the studies share."""

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


def run_rounds(
    plan: Plan,
    arms: Sequence[Arm],
    part: str,
    results: list[ArmResult],
    *,
    until: Slice,
    epochs: Sequence[int] | None = None,
    seconds: float | None = None,
    first_must_run: bool = True,
) -> None:
    """Runs every arm with every seed, as far as that is not done yet.

    Args:
        plan: What all runs have in common.
        arms: The first is the one that the others are compared with.
        part: Name of the folder of these runs.
        results: Takes the results as they come, so that a study that pauses has them; failed runs hold their error.
        until: When to stop for now.
        epochs: Of each arm; default: the plan's.
        seconds: Stop each run after so much training.
        first_must_run: Whether the others mean nothing without the first arm.

    Raises:
        BotanifyError: The very first run failed, so that there is nothing to compare with.
        StudyPaused: The slice is over.
    """
    console = Console(stderr=True)
    lengths = dict(zip((arm.name for arm in arms), epochs or [plan.epochs] * len(arms), strict=True))
    folder = plan.out / "runs" / part
    for number, seed in enumerate(plan.seeds):
        for place, arm in enumerate(order_of_round(arms, number, seed)):
            console.print(f"round {number + 1} of {len(plan.seeds)}: {arm.name}", highlight=False)
            common = plan.common(lengths[arm.name])
            result = run_arm(plan.recipe, arm, seed, folder, common, until=until, seconds=seconds)
            if result.error and first_must_run and number == place == 0:
                raise BotanifyError(
                    f"the first run failed, and the others would be compared with it: {result.error.rstrip('.')}. "
                    f"Mend that, remove {folder} and start again."
                )
            results.append(result)


def order_of_round(arms: Sequence[Arm], number: int, seed: int) -> list[Arm]:
    """The arms in the order of a round, drawn by its seed.

    The first round begins with the first arm: if that cannot run, nobody need wait for the others.
    """
    first = 1 if number == 0 else 0
    rest = arms[first:]
    return [*arms[:first], *random.Random(seed).sample(rest, len(rest))]


def run_and_report(stop_after_s: float, run: Callable[[Slice], None], report: Callable[[str], AnyReport]) -> AnyReport:
    """Runs what is not done yet and reports; a study that pauses reports what it has.

    Args:
        stop_after_s: When to pause; 0 runs to the end.
        run: Runs the study, until the slice is over.
        report: Writes what was found so far, given why runs are missing; empty where none are.

    Raises:
        StudyPaused: The time is over, or this process was asked to end.
    """
    with Slice(stop_after_s) as until:
        try:
            run(until)
        except StudyPaused as paused:
            report(str(paused))
            raise
        return report("")
