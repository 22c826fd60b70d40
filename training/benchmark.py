"""Program: studies of training, each written as JSON, Markdown page and plots. The same command resumes a study.

  python training/benchmark.py optimizations --data DATA --out DIR     effect of each optimization
  python training/benchmark.py batch-sizes --data DATA --out DIR       effect of the batch size
  python training/benchmark.py ablation --data DATA --weights FILE --out DIR
                                                                       effect of each part of the recipe
  python training/benchmark.py compare ONE.json OTHER.json             two results of one machine side by side
  python training/benchmark.py page RESULT.json --out PAGE.md          the page of a result

Flags of train.py for all runs follow after `--`, as in: ... --out DIR -- --workers 8
"""

import sys
from pathlib import Path
from typing import Annotated

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

import msgspec
import tyro

from training.engine.stop_signal import EXIT_REQUEUE
from training.insight.studies.ablation import Ablate, ablate
from training.insight.studies.arms import StudyPaused
from training.insight.studies.batch_sizes import BatchSizes, measure_batch_sizes
from training.insight.studies.comparison import Compare, compare
from training.insight.studies.optimizations import Optimizations, measure_optimizations
from training.insight.studies.report import Page, write_page

Command = (
    Annotated[Optimizations, tyro.conf.subcommand("optimizations")]
    | Annotated[BatchSizes, tyro.conf.subcommand("batch-sizes")]
    | Annotated[Ablate, tyro.conf.subcommand("ablation")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Page, tyro.conf.subcommand("page")]
)

AnyCommand = Optimizations | BatchSizes | Ablate | Compare | Page


def main() -> None:
    """Runs the program with the arguments of the command line; a paused study ends with exit code 75."""
    run_program(lambda: _run_or_pause(parse(sys.argv[1:])))


def parse(arguments: list[str]) -> AnyCommand:
    """Reads the command; the part after `--` are flags of train.py."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    command: AnyCommand = tyro.cli(Command, description=__doc__, args=arguments[:at])
    if isinstance(command, Compare | Page) or not arguments[at + 1 :]:
        return command
    return msgspec.structs.replace(command, flags=tuple(arguments[at + 1 :]))


def run(command: AnyCommand) -> None:
    """Runs a command.

    Raises:
        BotanifyError: The user can correct the cause.
        StudyPaused: The time is over, or this process received SIGTERM or Ctrl-C.
    """
    match command:
        case Compare():
            print(compare(command))
            return
        case Page():
            write_page(command)
        case Optimizations():
            measure_optimizations(command)
        case BatchSizes():
            measure_batch_sizes(command)
        case Ablate():
            ablate(command)
    print(f"Written: {command.out}")


def _run_or_pause(command: AnyCommand) -> None:
    try:
        run(command)
    except StudyPaused as paused:
        print(f"paused: {paused}", file=sys.stderr)
        raise SystemExit(EXIT_REQUEUE) from None


if __name__ == "__main__":
    main()
