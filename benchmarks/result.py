"""A result file: the figures of one program on one machine, and the same figures as a Markdown table.

`docs/generate.py` copies the table into a page, so a result stays readable when its program changes or goes.
"""

import random
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from rich.progress import track

from models.atomic_file import write_json
from models.errors import DataError
from models.metrics import Share
from training.machine import Machine, this_machine

ROOT: Final = Path(__file__).resolve().parents[1]
AnyResult = TypeVar("AnyResult", bound=msgspec.Struct)
Item = TypeVar("Item")


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What every result file tells beside its figures."""

    machine: Machine = msgspec.field(default_factory=this_machine)
    """With the commit."""
    measured_on: str = msgspec.field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    """Date."""


def write_result(result: msgspec.Struct, markdown: str, out: Path | None) -> None:
    """Prints the table and, if a path is given, writes the result with it and the command.

    Raises:
        OSError: The file cannot be written.
    """
    print(markdown)
    if out is not None:
        content = msgspec.to_builtins(result, enc_hook=str) | {"command": command_line(), "markdown": markdown}
        write_json(out, content)


def command_line() -> str:
    """The command that started this program; of absolute paths, which mean nothing elsewhere, only the last part."""
    program = Path(sys.argv[0]).resolve()
    shown = program.relative_to(ROOT) if program.is_relative_to(ROOT) else program.name
    words = [re.sub(r"(^|=)[~/](?:.*/)?([^/]+)/*$", r"\1\2", word) for word in sys.argv[1:]]
    return shlex.join(["python", str(shown), *words])


def read_result(path: Path, kind: type[AnyResult]) -> AnyResult:
    """Reads a result as the record of its program.

    Raises:
        DataError: The file is missing, damaged or of another version.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=lambda path_type, text: path_type(text))
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            f"{path.name} is not a result of this version", value=error, remedy="measure again, or restore the file"
        ) from error


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; the first column is text, the others are right-aligned figures."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def spread(values: Iterable[float | None], digits: int = 1, unit: str = "") -> str:
    """Returns the median and the range of the values, such as "2.0 [1.0 to 3.0]"; a dash if there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    middle = f"{statistics.median(known):,.{digits}f}{unit}"
    return middle if len(known) == 1 else f"{middle} [{min(known):,.{digits}f} to {max(known):,.{digits}f}]"


def in_turns(items: Iterable[Item], rounds: int, what: str = "rounds") -> Iterator[tuple[int, Item]]:
    """Yields each item once a round, with the round's number, in a random order that is the same in each run."""
    names = list(items)
    for number in track(range(rounds), what, disable=not sys.stderr.isatty()):
        for item in random.Random(number).sample(names, len(names)):
            yield number, item


def quotients(ours: Iterable[float], others: Iterable[float]) -> list[float]:
    """Returns how many times as much ours is, round by round; a round in which the others have nothing has none."""
    return [one / other for one, other in zip(ours, others, strict=True) if other > 0]


def percent(measured: Share) -> str:
    """Returns a share with its number: "61.2 % of 25,200"."""
    return f"{measured.value:.1%} of {measured.num_pictures:,}".replace("%", " %")


def rounded(value: float, unit: str = "") -> str:
    """Rounds to two significant digits, but never before the decimal point."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} {unit}".rstrip()
