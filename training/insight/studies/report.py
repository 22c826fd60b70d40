"""A study as files: NAME.json, NAME.md and plots.

Every result names its machine. A study resumes only on the machine that it began on.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import tyro

from models.errors import DataError
from training.atomic_file import replace_together, replaced
from training.insight.studies.plots import Bars, Curves, Plot, draw
from training.insight.studies.results import ArmResult
from training.machine import Machine, this_machine

_MACHINE_FILE: Final = "machine.json"
FORMAT: Final = 3
"""Version of NAME.json."""


class Table(msgspec.Struct, frozen=True):
    """A table of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Finding(msgspec.Struct, frozen=True):
    """A conclusion that follows from the figures by a fixed rule."""

    about: str
    """Name of the rule."""
    text: str


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a study did and found."""

    name: str
    """Name of its files."""
    title: str
    about: str
    """What was done, in a few sentences."""
    arms: list[ArmResult]
    """The runs that the arms are compared by."""
    other_runs: dict[str, list[ArmResult]] = {}
    """Further runs, by the name of their part."""
    tables: list[Table]
    findings: list[Finding]
    plots: list[Curves | Bars] = []


class Study(Content, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study and its origin: the content of NAME.json."""

    format: int = FORMAT
    machine: Machine
    measured_on: str
    """The training device."""
    recipe: str
    data: str
    """The data set, without its path."""
    flags: tuple[str, ...]
    """Flags of train.py for all arms, without paths."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the page and the plots of a result again."""

    result: tyro.conf.Positional[Path]
    """JSON file of a study."""
    out: Path
    """Markdown file; the plots are written beside it."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are right-aligned figures."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def spread(values: Iterable[float | None], digits: int = 1, unit: str = "") -> str:
    """The median and the range of the values, such as "2.0 [1.0 to 3.0]"; a dash if there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    middle = f"{statistics.median(known):,.{digits}f}{unit}"
    return middle if len(known) == 1 else f"{middle} [{min(known):,.{digits}f} to {max(known):,.{digits}f}]"


def markdown(study: Study, stem: str) -> str:
    """The page of a study; `stem` begins the file names of the plots."""
    versions = ", ".join(f"{name} {version}" for name, version in study.machine.libraries.items())
    card = f"; driver {study.machine.driver}, CUDA {study.machine.cuda}, cuDNN {study.machine.cudnn}"
    parts = [
        f"# {study.title}",
        study.about,
        f"Measured on {study.measured_on}. Machine: {study.machine}{card if study.machine.gpus else ''}. "
        f"Recipe {study.recipe}, data {study.data}, commit {study.machine.git_commit}. {versions}.",
        "Flags of all arms: " + (f"`{' '.join(study.flags)}`" if study.flags else "none") + ".",
        "## Conclusions",
        "\n".join(f"* {finding.text}" for finding in study.findings) or "None.",
    ]
    for each in study.tables:
        parts += [f"## {each.title}", table(each.columns, each.rows)]
    explained = {result.arm.name: result.arm.explains for result in study.arms}
    parts += ["## Arms", "\n".join(f"* {name}: {text}" for name, text in explained.items())] if explained else []
    parts += [f"![{plot.title}]({_plot_file(stem, plot)})" for plot in study.plots]
    return "\n\n".join(parts) + "\n"


def write_study(folder: Path, study: Study) -> None:
    """Writes NAME.json, NAME.md and NAME-PLOT.svg, all or none.

    Raises:
        OSError: A file could not be written.
    """
    study = _with_software_changes(folder, study)
    content = msgspec.json.format(msgspec.json.encode(study)) + b"\n"
    replace_together(folder, {f"{study.name}.json": content, **_page_files(study, study.name)})


def write_page(command: Page) -> None:
    """Writes the page and the plots of a result.

    Raises:
        DataError: The file is not a result of a study.
    """
    study = read_study(command.result)
    command.out.parent.mkdir(parents=True, exist_ok=True)
    replace_together(command.out.parent, _page_files(study, command.out.stem))


def read_study(path: Path) -> Study:
    """Reads NAME.json.

    Raises:
        DataError: The file is missing or is not a study of this version.
    """
    try:
        study = msgspec.json.decode(path.read_bytes(), type=Study)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            "not a result of a study", value=f"{path}: {error}", remedy="name a JSON file that benchmark.py wrote"
        ) from error
    if study.format != FORMAT:
        raise DataError(
            "this result has another format",
            value=f"{path}: format {study.format}",
            limit=f"format {FORMAT}",
            remedy="measure again, or read it with the commit that it names",
        )
    return study


def hold_machine(folder: Path) -> Machine:
    """Describes this machine and records it in the folder of a study.

    Raises:
        DataError: The study began on other hardware.
    """
    machine, path = this_machine(), folder / _MACHINE_FILE
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        require_same_machine(msgspec.json.decode(path.read_bytes(), type=Machine), machine, "the study's folder")
    else:
        with replaced(path) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(machine)))
    return machine


def require_same_machine(one: Machine, other: Machine, what: str) -> None:
    """Refuses to combine figures of different machines.

    Raises:
        DataError: The hardware differs.
    """
    differences = one.differences(other)
    if differences:
        raise DataError(
            f"{what} has figures of another machine, and figures of different machines cannot be compared",
            value="; ".join(differences),
            remedy="measure both on one machine, each in its own folder",
        )


def _with_software_changes(folder: Path, study: Study) -> Study:
    """Adds a finding if the study was resumed with another commit, driver or library version."""
    path = folder / _MACHINE_FILE
    began = msgspec.json.decode(path.read_bytes(), type=Machine) if path.is_file() else study.machine
    changed = began.other_software(study.machine)
    if not changed:
        return study
    text = f"The software changed during the study: {'; '.join(changed)}."
    return msgspec.structs.replace(study, findings=[*study.findings, Finding("software", text)])


def _page_files(study: Study, stem: str) -> dict[str, bytes]:
    plots = {_plot_file(stem, plot): draw(plot) for plot in study.plots}
    return {f"{stem}.md": markdown(study, stem).encode(), **plots}


def _plot_file(stem: str, plot: Plot) -> str:
    return f"{stem}-{plot.name}.svg"
