"""Program: studies of training, each as a page, JSON and plots; started again, it goes on where it stopped.

python training/benchmark.py optimizations --data DATA --out DIR     what each optimization is worth
python training/benchmark.py batch-sizes --data DATA --out DIR       whether bigger is better
python training/benchmark.py ablation --data DATA --weights FILE --out DIR
                                                                     what each part of the recipe is worth
python training/benchmark.py compare ONE.json OTHER.json             two results of one machine side by side

Flags of train.py for all runs follow behind `--`, as in: ... --out DIR -- --workers 8
"""

import sys
from pathlib import Path
from typing import Annotated

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro

from training.engine.stop_signal import EXIT_REQUEUE
from training.insight.studies.ablation.study import Ablate, ablate
from training.insight.studies.arms import StudyPaused
from training.insight.studies.batch_sizes.study import BatchSizes, measure_batch_sizes
from training.insight.studies.comparison import Compare, compare
from training.insight.studies.optimizations.study import Optimizations, measure_optimizations
from training.program import run_program

Command = (
    Annotated[Optimizations, tyro.conf.subcommand("optimizations")]
    | Annotated[BatchSizes, tyro.conf.subcommand("batch-sizes")]
    | Annotated[Ablate, tyro.conf.subcommand("ablation")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
)


def main() -> None:
    """Runs the program with the arguments of the command line; a study that pauses asks to be started again."""
    run_program(lambda: _unless_paused(parse(sys.argv[1:])))


def parse(arguments: list[str]) -> Optimizations | BatchSizes | Ablate | Compare:
    """Reads the command; what follows `--` are flags of train.py."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    command: Optimizations | BatchSizes | Ablate | Compare = tyro.cli(Command, description=__doc__, args=arguments[:at])
    if isinstance(command, Compare) or not arguments[at + 1 :]:
        return command
    return msgspec.structs.replace(command, flags=tuple(arguments[at + 1 :]))


def run(command: Optimizations | BatchSizes | Ablate | Compare) -> None:
    """Does what one command says.

    Raises:
        BotanifyError: Something that the user can mend.
        StudyPaused: The time is over, or this process was asked to end.
    """
    if isinstance(command, Compare):
        print(compare(command))
        return
    match command:
        case Optimizations():
            measure_optimizations(command)
        case BatchSizes():
            measure_batch_sizes(command)
        case Ablate():
            ablate(command)
    print(f"Written to {command.out}: a page, JSON and plots.")


def _unless_paused(command: Optimizations | BatchSizes | Ablate | Compare) -> None:
    try:
        run(command)
    except StudyPaused as paused:
        print(f"paused: {paused}", file=sys.stderr)
        raise SystemExit(EXIT_REQUEUE) from None


if __name__ == "__main__":
    main()
