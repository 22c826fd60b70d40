"""Program: checks that the pages show the figures of the results and name the commits that were measured.

python benchmarks/tables.py

A result file in `benchmarks/results/DEVICE` holds its table beside its figures; `docs/generate.py` writes all of them
into one page. README.md and benchmarks/README.md show single figures: a line that links to a result must name its
commit, and in benchmarks/README.md each number of the third column must stand in the table of a result of that line.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.errors import DataError
from models.program import clear_errors

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
_RESULT_LINK: Final = re.compile(r"\]\(((?:benchmarks/)?results/[^)]+\.json)\)")
_NUMBER: Final = re.compile(r"\d[\d,.]*\d|\d")
_COMMIT_DIGITS: Final = 7


def main() -> None:
    """Runs the program with the arguments of the command line."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with clear_errors():
        check_pages()


def check_pages() -> None:
    """Compares the pages that show single figures with the results.

    Raises:
        DataError: A line names no commit or another one, or shows a number that its result does not have.
    """
    require_commits((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    require_commits(page, ROOT / "benchmarks")
    require_figures(page, ROOT / "benchmarks")


def require_commits(page: str, folder: Path) -> None:
    """Checks that each line that links to a result names the commit that was measured.

    Raises:
        DataError: A line names none, or another one.
    """
    for line in page.splitlines():
        for link in _RESULT_LINK.findall(line):
            commit = _commit(_read(folder / link))
            if f"`{commit}`" not in line:
                raise DataError(
                    f"README.md shows {link} without the commit that was measured", limit=commit, remedy="name it there"
                )


def require_figures(page: str, folder: Path) -> None:
    """Checks that the numbers in the third column of a row with results stand in the tables of these results.

    Raises:
        DataError: A number does not.
    """
    for line in page.splitlines():
        links = _RESULT_LINK.findall(line)
        if not links:
            continue
        known = set(_NUMBER.findall(" ".join(str(_read(folder / link).get("markdown")) for link in links)))
        for number in _NUMBER.findall(line.split("|")[3]):
            if number not in known:
                raise DataError(
                    "README.md shows a number that its result does not have",
                    value=number,
                    limit=", ".join(links),
                    remedy="correct it",
                )


def results_page(folder: Path, results: Path = RESULTS) -> str:
    """Returns a page with the table of every result, by its name and then by device.

    Args:
        folder: Folder of the page, which its links are relative to.
        results: Folder with one folder of results for each device.
    """
    parts = [
        "# Results",
        "The tables of all result files. [The overview](../../benchmarks/README.md) says what each of them measures.",
    ]
    shown = ""
    for path, result in results_with_tables(results):
        if path.stem != shown:
            shown = path.stem
            parts.append(f"## {shown}")
        link = Path(os.path.relpath(path, folder)).as_posix()
        parts += [f"[Result]({link}) at commit `{_commit(result)}`.", str(result["markdown"])]
    return "\n\n".join(parts) + "\n"


def results_with_tables(results: Path = RESULTS) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the results that hold a table, with their files, by their name and then by device."""
    files = sorted(results.rglob("*.json"), key=lambda path: (path.stem, path))
    return [(path, result) for path in files if "markdown" in (result := _read(path))]


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise DataError(f"{path} is no result", value=error, remedy="measure again, or restore it") from error


def _commit(result: dict[str, Any]) -> str:
    return str(result["machine"]["git_commit"][:_COMMIT_DIGITS])


if __name__ == "__main__":
    main()
