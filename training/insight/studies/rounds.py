"""Runs the arms of a study seed by seed, so that a machine that slows down affects all arms alike.

The seed also shuffles the order of the arms, so that effects of the previous run (a warm card, cached files) differ
from round to round.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import tyro
from rich.console import Console

from models.errors import BotanifyError, RecipeError
from training.dataset.manifest import Manifest
from training.insight.studies.arms import StudyPaused, TimeSlice, run_arm
from training.insight.studies.report import Content, Finding, Study, hold_machine, write_study
from training.insight.studies.results import Arm, ArmResult
from training.recipe import HardwareRecipe

_NEVER: Final = "1000000000"


class StudyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all studies share."""

    data: Path
    """Folder written by training/prepare.py."""
    out: Path
    """Folder for the runs and for the result as JSON, Markdown and plots."""
    recipe: Path = Path("b4_5337")
    """The recipe that is varied: a TOML file or the name of one in training/recipes."""
    epochs: int = 3
    """Epochs of each run; the first is the warm-up and is not timed."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Every arm runs once with each seed."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Training device; auto uses CUDA if available."""
    stop_after_s: float = 0.0
    """Pause after this many seconds; the same command resumes. 0 runs to the end."""
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Flags of train.py for all runs: the part of the command line after `--`."""

    @property
    def device_type(self) -> Literal["cuda", "cpu"]:
        """The training device.

        Raises:
            BotanifyError: CUDA is requested but not available.
        """
        from training.engine.device import choose_device  # loads torch, for which --help does not wait

        return "cuda" if choose_device(HardwareRecipe(device=self.device)).type == "cuda" else "cpu"

    def common_flags(self, epochs: int) -> tuple[str, ...]:
        """Flags of every run. Checkpoints are written between epochs only, so that they are not timed."""
        return (
            *("--data", str(self.data), "--device", self.device_type, "--expect-outputs", "0"),
            *("--epochs", str(epochs), "--checkpoint-every-steps", _NEVER),
            *self.flags,
        )


def run_study(
    options: StudyOptions,
    own_flags: Sequence[str],
    run: Callable[[TimeSlice], None],
    describe: Callable[[], Content],
) -> Study:
    """Runs what is missing and writes the result; a paused study writes the result so far.

    Args:
        options: The command line.
        own_flags: Flags of train.py that the study sets itself.
        run: Runs the study until the time slice is over.
        describe: Describes what was found so far.

    Raises:
        BotanifyError: The options are wrong, or nothing can be compared.
        StudyPaused: The time slice is over, or this process received SIGTERM or Ctrl-C.
    """
    _check(options, own_flags)
    from training.engine.device import choose_device, describe_device  # loads torch, see above

    machine = hold_machine(options.out)
    origin: dict[str, Any] = {
        "machine": machine,
        "measured_on": describe_device(choose_device(HardwareRecipe(device=options.device_type))),
        "recipe": options.recipe.stem,
        "data": describe_data(options.data),
        "flags": without_paths(options.flags),
    }

    def write(missing: str) -> Study:
        study = Study(**(msgspec.structs.asdict(describe()) | origin))
        if missing:
            text = f"**Unfinished**: runs are missing, and the conclusions may change ({missing.rstrip('.')})."
            study = msgspec.structs.replace(study, findings=[Finding("unfinished", text), *study.findings])
        if study.arms:
            write_study(options.out, study)
        return study

    with TimeSlice(options.stop_after_s) as until:
        try:
            run(until)
        except StudyPaused as paused:
            write(str(paused))
            raise
        return write("")


def run_rounds(
    options: StudyOptions,
    arms: Sequence[Arm],
    part: str,
    results: list[ArmResult],
    *,
    until: TimeSlice,
    flags: Callable[[Arm], tuple[str, ...]] | None = None,
    seeds: Sequence[int] = (),
    max_seconds: float | None = None,
    first_must_run: bool = True,
) -> None:
    """Runs every arm with every seed; finished runs are not repeated.

    Args:
        options: The command line.
        arms: The arms; the first is the one that the others are compared with.
        part: Name of the folder of these runs.
        results: The results are appended here as they arrive, so that a paused study has them.
        until: When to pause.
        flags: Returns the flags of an arm that are not its own; default: those of all runs.
        seeds: Default: those of the options.
        max_seconds: Stop each run after so much training.
        first_must_run: Whether to stop the study if the very first run fails.

    Raises:
        BotanifyError: The very first run failed.
        StudyPaused: The time slice is over.
    """
    console, folder, seeds = Console(stderr=True), options.out / "runs" / part, seeds or options.seeds
    for number, seed in enumerate(seeds):
        for place, arm in enumerate(order_of_round(arms, number, seed)):
            console.print(f"{part}, round {number + 1} of {len(seeds)}: {arm.name}", highlight=False)
            common = flags(arm) if flags else validated_last(options, options.epochs)
            result = run_arm(options.recipe, arm, seed, folder, common, until=until, max_seconds=max_seconds)
            if result.error and first_must_run and number == place == 0:
                raise BotanifyError(
                    f"the first run failed, and the others would be compared with it: {result.error.rstrip('.')}. "
                    f"Fix the cause, remove {folder} and start again."
                )
            results.append(result)


def validated_last(options: StudyOptions, epochs: int) -> tuple[str, ...]:
    """Flags of a run that is validated after its last epoch only."""
    return (*options.common_flags(epochs), "--validate-every-epochs", str(epochs))


def order_of_round(arms: Sequence[Arm], number: int, seed: int) -> list[Arm]:
    """The arms in random order. The first round begins with the first arm, which the others are compared with."""
    first = 1 if number == 0 else 0
    rest = arms[first:]
    return [*arms[:first], *random.Random(seed).sample(rest, len(rest))]


def require_known(names: Sequence[str], known: Sequence[str], device: str) -> None:
    """Checks the arms that `--only` names.

    Raises:
        RecipeError: There is no arm of that name.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise RecipeError(
            f"no such arm on {device}", value=", ".join(unknown), limit=", ".join(known), remedy="correct --only"
        )


def describe_data(folder: Path) -> str:
    """Describes prepared data without its path: "flowers17, 17 outputs, 1,360 pictures, manifest 0123456789ab".

    Raises:
        DataError: The folder holds no prepared data.
    """
    manifest = Manifest(folder)
    outputs, pictures = len(manifest.taxonomy.outputs), len(manifest)
    return f"{folder.resolve().name}, {outputs:,} outputs, {pictures:,} pictures, manifest {manifest.sha256[:12]}"


def without_paths(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags in which a path keeps only its last part."""
    return tuple(Path(flag).name if "/" in flag else flag for flag in flags)


def _check(options: StudyOptions, own_flags: Sequence[str]) -> None:
    if not options.seeds or len(set(options.seeds)) < len(options.seeds):
        raise RecipeError("a study needs seeds, each once", value=options.seeds, remedy="pass --seeds 0 1 2")
    if options.epochs < 2:
        raise RecipeError(
            "the first epoch is the warm-up, and the others are timed",
            value=f"--epochs {options.epochs}",
            limit="at least 2",
            remedy="raise --epochs",
        )
    decided = {"--data", "--run", "--seed", "--epochs", "--device", *own_flags}
    for flag in options.flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in decided or name.replace("--no-", "--", 1) in decided:
            raise RecipeError(
                "the study itself sets this flag", value=flag, remedy="remove it from the flags after `--`"
            )
    Manifest(options.data).rows_of("validation")
