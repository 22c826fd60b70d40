"""Program: writes the tables of the results into the pages that show them, and checks that they are not out of date.

python benchmarks/tables.py [--check]

A result file in `benchmarks/results/DEVICE` holds its table beside its figures. On a page, the text between
`<!-- table: NAME -->` and `<!-- end of table -->` shows the table of every device that has a result of that name. With
--check nothing is written: the program fails if a page differs from the results, or if README shows a result that is
older than the last release in CHANGELOG.md.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.errors import DataError
from training.program import run_program

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGES: Final = (ROOT / "benchmarks" / "README.md", ROOT / "docs" / "measurements.md")
_MARKED: Final = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_RESULT_LINK: Final = re.compile(r"\]\((benchmarks/results/[^)]+\.json)\)")
_RELEASE: Final = re.compile(r"^## \[\d[^\]]*\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def main() -> None:
    """Runs the program with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if something is out of date")
    check = parser.parse_args().check
    run_program(check_all if check else write_pages)


def write_pages() -> None:
    """Writes every table of every page anew."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")


def check_all() -> None:
    """Compares the pages with the results, and the results that README shows with the last release.

    Raises:
        DataError: A page shows other figures than the results, or README shows figures from before the last release.
    """
    check_pages()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    require_recent((ROOT / "README.md").read_text(encoding="utf-8"), ROOT, max(_RELEASE.findall(changelog)))


def check_pages() -> None:
    """Compares the pages with the results.

    Raises:
        DataError: A page shows other figures than the results.
    """
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if text != with_tables(text, page.parent):
            raise DataError(f"{page.relative_to(ROOT)} shows other figures than the results", remedy="run: make tables")


def require_recent(readme: str, root: Path, released_on: str) -> None:
    """Checks that every result that a text links to was measured on the day of the last release or later.

    Raises:
        DataError: A result is older.
    """
    for link in sorted(set(_RESULT_LINK.findall(readme))):
        measured_on = json.loads((root / link).read_bytes()).get("measured_on", "")
        if measured_on < released_on:
            raise DataError(
                f"README.md shows {link}, which is older than the last release",
                value=measured_on,
                limit=f"{released_on} or later",
                remedy="run: make figures",
            )


def with_tables(page: str, folder: Path, results: Path = RESULTS) -> str:
    """Returns a page with every marked table written anew.

    Args:
        page: Markdown.
        folder: Folder of the page, which its links are relative to.
        results: Folder with one folder of results for each device.

    Raises:
        DataError: A marker names no result, or a result has no table.
    """

    def filled(marked: re.Match[str]) -> str:
        paths = sorted(results.glob(f"*/**/{marked['name']}.json"))
        if not paths:
            raise DataError(
                "a page names a result that does not exist", value=marked["name"], remedy="correct the marker"
            )
        shown = [f"[Result]({_link(path, folder)}). {_table(path)}\n\n" for path in paths]
        return "".join([marked[1], *shown, marked[3]])

    return _MARKED.sub(filled, page)


def _link(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _table(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["markdown"])
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{path} is no result with a table", value=error, remedy="measure again, or restore it"
        ) from error


if __name__ == "__main__":
    main()
