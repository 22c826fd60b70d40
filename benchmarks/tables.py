"""Program: writes the tables of docs/measurements.md, and the lines of each folder in docs/architecture.md.

python benchmarks/tables.py [--check]

The text between `<!-- table: NAME -->` and `<!-- end of table -->` shows every result file of that name. The results of
each device have a folder of their own; a device without that result is not shown.
"""

import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro

from benchmarks import (
    answer,
    demonstration,
    drawn_answers,
    figures_scale,
    identify_folder,
    loader,
    precisions,
    scale,
    train_speed,
)
from benchmarks.loader_variants import Variant
from benchmarks.serving.tables import SERVING_TABLES
from models.errors import DataError
from training.atomic_file import replaced
from training.insight.studies.report import table
from training.program import run_program

ROOT: Final = Path(__file__).resolve().parents[1]
_MARKED: Final = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
FOLDER_ROW: Final = re.compile(r"^(\| `(?P<folder>[\w/]+)/` \| )(?P<lines>[\d,]+)( \|)", re.MULTILINE)
_AUGMENTATIONS: Final = {"RandAugment": "with RandAugment"}
_LOADERS: Final[Mapping[str, Variant]] = {
    "(a) torchvision": "torchvision",
    "(b) timm": "timm",
    "(c) ours, files": "files",
    "(d) ours, shards": "shards",
}
AnyResult = TypeVar("AnyResult")


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the tables of docs/measurements.md from the results, and counts the lines in docs/architecture.md."""

    page: Annotated[Path, tyro.conf.arg(aliases=["--readme"])] = ROOT / "docs" / "measurements.md"
    """The page."""
    folders: Path = ROOT / "docs" / "architecture.md"
    """The page with the table of folders; `check` leaves it alone."""
    results: Path = ROOT / "benchmarks" / "results"
    """Folder with one folder of results for each device."""
    check: bool = False
    """Write nothing, and fail if the page differs from the results."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: write_tables(tyro.cli(Tables, description=__doc__)))


def write_tables(command: Tables) -> None:
    """Writes the tables, or with `check` compares them.

    Raises:
        DataError: A marker names no table, a result cannot be read, or the page that is checked is out of date.
    """
    old = command.page.read_text(encoding="utf-8")
    new = with_tables(old, command.results, command.page.parent)
    if command.check and new != old:
        wrong = [a["name"] for a, b in zip(_MARKED.finditer(old), _MARKED.finditer(new), strict=True) if a[0] != b[0]]
        raise DataError(
            f"{command.page.name} shows other figures than the results",
            value=", ".join(wrong),
            remedy="run: make tables",
        )
    _write_if_changed(command.page, old, new)
    if not command.check:
        folders = command.folders.read_text(encoding="utf-8")
        _write_if_changed(command.folders, folders, with_lines(folders))


def with_lines(page: str) -> str:
    """Returns the page with the lines of Python counted anew in every row of the table of folders."""
    return FOLDER_ROW.sub(lambda row: f"{row[1]}{python_lines(ROOT / row['folder']):,}{row[4]}", page)


def python_lines(folder: Path) -> int:
    """Counts the lines of all Python files below a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def with_tables(page: str, results: Path, base: Path) -> str:
    """Returns the page with every marked table written anew.

    Args:
        page: Markdown.
        results: Folder of the results.
        base: Folder of the page, which its links are relative to.

    Raises:
        DataError: A marker names no table, or a result cannot be read.
    """

    def filled(marked: re.Match[str]) -> str:
        render = TABLES.get(marked["name"])
        if render is None:
            raise DataError("no such table", value=marked["name"], limit=", ".join(TABLES), remedy="correct the marker")
        shown = [render(path, Path(os.path.relpath(path, base)).as_posix()) for path in _files(results, marked["name"])]
        return "".join([marked[1], *(f"{each}\n\n" for each in shown), marked[3]])

    return _MARKED.sub(filled, page)


def loader_table(path: Path, link: str) -> str:
    """Returns how many pictures each training loader prepares, and how ours compares: medians over the rounds."""
    result = _read(path, loader.Result)
    rows = [_loader_row(comparison) for comparison in result.comparisons]
    columns = ["pictures", "px", "augmentation", *_LOADERS, "(d) / (b)", "(c) / (a)"]
    return f"{result.machine}; {result.rounds} rounds ([result]({link})):\n\n{table(columns, rows)}"


def scale_table(path: Path, link: str) -> str:
    """Returns time and memory to assemble and open a training set of that size."""
    result = _read(path, scale.Result)
    rows = [[step, _rounded(seconds, "s")] for step, seconds in result.seconds.items()]
    rows += [["all of it", _rounded(sum(result.seconds.values()), "s")], ["most memory", f"{result.peak_gb:.1f} GB"]]
    kept = f"{result.num_kept:,} of {result.num_pictures:,} pictures kept, {result.num_outputs:,} outputs"
    return f"{result.machine}; {kept} ([result]({link})):\n\n{table(['what', 'figure'], rows)}"


def figures_scale_table(path: Path, link: str) -> str:
    """Returns time and memory of judging the outputs of a network for that many pictures."""
    result = _read(path, figures_scale.Result)
    rows = [[step, _rounded(seconds, "s")] for step, seconds in result.seconds.items() if step != "draw"]
    rows += [["all of it", _rounded(figures_scale.judging_seconds(result), "s")]]
    rows += [["CPU time", _rounded(result.cpu_s, "s")], ["most memory", f"{result.peak_gb:.1f} GB"]]
    sizes = (
        f"{result.num_pictures:,} pictures judged, {result.num_outputs:,} outputs, {result.num_calibration:,} "
        f"calibration pictures; load {result.load[0]:.1f} to {result.load[1]:.1f}"
    )
    return f"{result.machine}; {sizes} ([result]({link})):\n\n{table(['what', 'figure'], rows)}"


def train_speed_table(path: Path, link: str) -> str:
    """Returns the speed of each training loop, and the goals."""
    return f"[Result]({link}). {train_speed.markdown(_read(path, train_speed.Result))}"


def precisions_table(path: Path, link: str) -> str:
    """Returns accuracy, size and release checks of each precision of a bundle."""
    return f"[Result]({link}). {precisions.markdown(_read(path, precisions.Result))}"


def answer_table(path: Path, link: str) -> str:
    """Returns the time of an answer over 5,337 taxa, and the coverage of its candidate sets."""
    return f"[Result]({link}). {answer.markdown(_read(path, answer.Result))}"


def demonstration_table(path: Path, link: str) -> str:
    """Returns how far the answers of the demonstration bundle can be believed."""
    return f"[Result]({link}). {demonstration.markdown(_read(path, demonstration.Result))}"


def drawn_answers_table(path: Path, link: str) -> str:
    """Returns how far the answers of a network over drawn plants can be believed."""
    return f"[Result]({link}). {drawn_answers.markdown(_read(path, drawn_answers.Result))}"


def identify_folder_table(path: Path, link: str) -> str:
    """Returns how many photographs a second `serving.identify_folder` and simpler ways answer."""
    return f"[Result]({link}). {identify_folder.markdown(_read(path, identify_folder.FolderSpeedResult))}"


TABLES: Final[Mapping[str, Callable[[Path, str], str]]] = {
    "answer": answer_table,
    "demonstration": demonstration_table,
    "drawn_answers": drawn_answers_table,
    "figures_scale": figures_scale_table,
    "identify_folder": identify_folder_table,
    "loader": loader_table,
    "scale": scale_table,
    "train_speed": train_speed_table,
    "precisions": precisions_table,
    **SERVING_TABLES,
}
"""Stem of a result file -> function that renders the file as Markdown, given its path and the link to it."""


def _loader_row(comparison: loader.Comparison) -> list[str]:
    setting = comparison.setting
    rates = {rate.variant: statistics.median(rate.per_core_s or rate.per_s) for rate in comparison.rates}
    return [
        f"{comparison.pictures}, {comparison.megapixels[0]:.2g} to {comparison.megapixels[1]:.2g} MP",
        str(setting.side_px),
        _AUGMENTATIONS.get(setting.augmentation, setting.augmentation),
        *(_rounded(rates[variant]) if variant in rates else "" for variant in _LOADERS.values()),
        _rounded(statistics.median(comparison.ratios("shards", "timm"))),
        _rounded(statistics.median(comparison.ratios("files", "torchvision"))),
    ]


def _write_if_changed(path: Path, old: str, new: str) -> None:
    if new != old:
        with replaced(path) as stream:
            stream.write(new.encode())
        print(f"Written: {path}")


def _files(results: Path, name: str) -> list[Path]:
    return sorted(results.glob(f"*/**/{name}.json"))


def _read(path: Path, kind: type[AnyResult]) -> AnyResult:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_decode)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path} is no result of this version", value=error, remedy="measure again, or restore the file"
        ) from error


def _decode(kind: type, value: Any) -> Any:
    return kind(value)  # a path, which JSON holds as text


def _rounded(value: float, unit: str = "") -> str:
    """Rounds to two significant digits, but never before the decimal point."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


if __name__ == "__main__":
    main()
