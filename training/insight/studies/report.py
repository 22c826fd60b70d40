"""A study as files: NAME.json for programs, NAME.md for people, and plots; all of them new or none.

Every result names its machine. A study goes on only on the machine that it began on, and results of two machines are
never put side by side.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from models.errors import DataError
from training.atomic_file import replace_together, replaced
from training.dataset.manifest import Manifest
from training.engine.device import choose_device, describe_device
from training.insight.studies.plots import Plot, draw
from training.insight.studies.results import ArmResult
from training.machine import Machine, this_machine
from training.recipe import HardwareRecipe

_MACHINE_FILE: Final = "machine.json"
FORMAT: Final = 2
"""Version of NAME.json."""


class Table(msgspec.Struct, frozen=True):
    """A table of a study, as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Finding(msgspec.Struct, frozen=True):
    """A sentence that follows from the figures by rule."""

    about: str
    """The rule's name: stable, so that programs can look for it."""
    text: str


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a study was, what it measured and what follows."""

    format: int = FORMAT
    name: str
    """Name of its files."""
    title: str
    about: str
    """What was done, in a few sentences."""
    machine: Machine
    measured_on: str
    """The device that trained, in words."""
    recipe: str
    data: str
    """Which data, in words; no path."""
    flags: tuple[str, ...]
    """Flags of train.py that all arms have; no paths."""
    arms: list[ArmResult]
    tables: list[Table]
    findings: list[Finding]
    details: dict[str, Any] = {}
    """What else the study wants to keep, as plain values."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def spread(values: Iterable[float | None], digits: int = 1, unit: str = "") -> str:
    """The median of what was measured and, of several values, the least and the most; a dash where there is nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    middle = f"{statistics.median(known):,.{digits}f}{unit}"
    return middle if len(known) == 1 else f"{middle} [{min(known):,.{digits}f} to {max(known):,.{digits}f}]"


def unfinished(why: str) -> list[Finding]:
    """Says of a study that runs are missing; nothing where `why` is empty."""
    text = f"**Unfinished**: runs are missing, and what follows may change ({why.rstrip('.')})."
    return [Finding("unfinished", text)] if why else []


def markdown(study: Study, plots: Sequence[Plot] = ()) -> str:
    """The study as a page: what was done, where, what follows, the figures."""
    versions = ", ".join(f"{name} {version}" for name, version in study.machine.libraries.items())
    card = f"; driver {study.machine.driver}, CUDA {study.machine.cuda}, cuDNN {study.machine.cudnn}"
    parts = [
        f"# {study.title}",
        study.about,
        f"Measured on {study.measured_on}. Machine: {study.machine}{card if study.machine.gpus else ''}. "
        f"Recipe {study.recipe}, data {study.data}, commit {study.machine.git_commit}. {versions}.",
        "Flags of all arms: " + (f"`{' '.join(study.flags)}`" if study.flags else "none") + ".",
        "## What follows",
        "\n".join(f"* {finding.text}" for finding in study.findings) or "Nothing.",
    ]
    for each in study.tables:
        parts += [f"## {each.title}", table(each.columns, each.rows)]
    explained = {result.arm.name: result.arm.explains for result in study.arms}
    parts += ["## The arms", "\n".join(f"* {name}: {text}" for name, text in explained.items())] if explained else []
    parts += [f"![{plot.title}]({_plot_file(study.name, plot)})" for plot in plots]
    return "\n\n".join(parts) + "\n"


def write_study(folder: Path, study: Study, plots: Sequence[Plot] = ()) -> Path:
    """Writes NAME.json, NAME.md and NAME-PLOT.svg together.

    Returns:
        The page.

    Raises:
        OSError: A file could not be written.
    """
    study = _told_of_other_software(folder, study)
    files = {
        f"{study.name}.json": msgspec.json.format(msgspec.json.encode(study)) + b"\n",
        f"{study.name}.md": markdown(study, plots).encode(),
        **{_plot_file(study.name, plot): draw(plot) for plot in plots},
    }
    replace_together(folder, files)
    return folder / f"{study.name}.md"


def _told_of_other_software(folder: Path, study: Study) -> Study:
    """A study that went on with another commit or another driver says so."""
    path = folder / _MACHINE_FILE
    began = msgspec.json.decode(path.read_bytes(), type=Machine) if path.is_file() else study.machine
    changed = began.other_software(study.machine)
    if not changed:
        return study
    text = f"The study began and ended with other software: {'; '.join(changed)}."
    return msgspec.structs.replace(study, findings=[*study.findings, Finding("software", text)])


def read_study(path: Path) -> Study:
    """Reads NAME.json.

    Raises:
        DataError: The file is missing, or is no study of this version.
    """
    try:
        study = msgspec.json.decode(path.read_bytes(), type=Study)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            "that is no result of a study", value=f"{path}: {error}", remedy="name a JSON file that benchmark.py wrote"
        ) from error
    if study.format != FORMAT:
        raise DataError(
            "that result of a study is of another version",
            value=f"{path}: format {study.format}",
            limit=f"format {FORMAT}",
            remedy="measure again, or read it with the commit that it names",
        )
    return study


def hold_machine(folder: Path) -> Machine:
    """Describes this machine, and ties the folder of a study to it.

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
    """Lets only figures of one machine come together.

    Raises:
        DataError: The hardware differs.
    """
    differences = one.differences(other)
    if differences:
        raise DataError(
            f"{what} holds figures of another machine, and figures of different machines are not compared",
            value="; ".join(differences),
            remedy="measure both on one machine, each in a folder of its own",
        )


def trained_on(hardware: HardwareRecipe) -> str:
    """The device that the arms of a study train on, in words."""
    return describe_device(choose_device(hardware))


def data_in_words(folder: Path) -> str:
    """Names prepared data without its place: "flowers17, 17 outputs, 1,360 pictures, manifest 0123456789ab".

    Raises:
        DataError: The folder holds no prepared data.
    """
    manifest = Manifest(folder)
    outputs, pictures = len(manifest.taxonomy.outputs), len(manifest)
    return f"{folder.resolve().name}, {outputs:,} outputs, {pictures:,} pictures, manifest {manifest.sha256[:12]}"


def without_paths(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags as they may stand in a result that others read: a path keeps only its last part."""
    return tuple(Path(flag).name if "/" in flag else flag for flag in flags)


def _plot_file(study: str, plot: Plot) -> str:
    return f"{study}-{plot.name}.svg"
