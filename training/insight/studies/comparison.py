"""Two results of one study, from one machine, side by side."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tyro

from models.errors import DataError
from training.atomic_file import replaced
from training.insight.studies.figures import Figure, known, memory_gb, of_arm, pictures_per_s, top1_percent
from training.insight.studies.report import Study, read_study, require_same_machine, spread, table
from training.insight.studies.results import ArmResult

_COLUMNS = ["arm", "pictures/s, one", "other", "times", "top-1 %, one", "other", "memory GB, one", "other"]


class Compare(msgspec.Struct, frozen=True, kw_only=True):
    """Compares two results of one study; refuses results of different machines."""

    one: tyro.conf.Positional[Path]
    """JSON file of a study."""
    other: tyro.conf.Positional[Path]
    """JSON file of the same study with another commit or other flags."""
    out: Path | None = None
    """Also write the comparison to this Markdown file."""


def compare(command: Compare) -> str:
    """The comparison as Markdown.

    Raises:
        DataError: A file is not a result, or the studies or machines differ.
    """
    one, other = read_study(command.one), read_study(command.other)
    require_same_machine(one.machine, other.machine, "the comparison")
    if one.name != other.name or one.measured_on != other.measured_on:
        raise DataError(
            "only results of the same study and device can be compared",
            value=f"{one.name} on {one.measured_on}, {other.name} on {other.measured_on}",
            remedy="name two files of the same study on the same device",
        )
    page = _page(one, other)
    if command.out is not None:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        with replaced(command.out) as stream:
            stream.write(page.encode())
    return page


def _page(one: Study, other: Study) -> str:
    names = list(dict.fromkeys(result.arm.name for result in (*one.arms, *other.arms)))
    rows = [_row(name, of_arm(one.arms, name), of_arm(other.arms, name)) for name in names]
    parts = [f"# {one.title}: two results", f"Machine: {one.machine}. Measured on {one.measured_on}."]
    differences = _differences(one, other)
    if differences:
        parts.append("Other differences:\n\n" + "\n".join(f"* {each}" for each in differences))
    return "\n\n".join([*parts, table(_COLUMNS, rows)]) + "\n"


def _differences(one: Study, other: Study) -> list[str]:
    """Differences that may affect the figures."""
    found = one.machine.other_software(other.machine)
    for name in ("recipe", "data"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            found.append(f"{name} {ours} and {theirs}")
    if one.flags != other.flags:
        found.append(f"flags {' '.join(one.flags) or 'none'} and {' '.join(other.flags) or 'none'}")
    arm_flags = {result.arm.name: result.arm.flags for result in one.arms}
    for result in other.arms:
        ours = arm_flags.pop(result.arm.name, result.arm.flags)
        if ours != result.arm.flags:
            found.append(f"arm {result.arm.name}: {' '.join(ours)} and {' '.join(result.arm.flags)}")
    return found


def _row(name: str, one: Sequence[ArmResult], other: Sequence[ArmResult]) -> list[str]:
    def both(figure: Figure, digits: int = 1) -> tuple[str, str]:
        return spread(map(figure, one), digits), spread(map(figure, other), digits)

    return [name, *both(pictures_per_s), _times(one, other), *both(top1_percent), *both(memory_gb, 2)]


def _times(one: Sequence[ArmResult], other: Sequence[ArmResult]) -> str:
    """Ratio of the other speed to the first."""
    ours, theirs = (known(pictures_per_s, results) for results in (one, other))
    return f"{statistics.median(theirs) / statistics.median(ours):.2f}" if ours and theirs else "–"
