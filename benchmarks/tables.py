"""Program: writes the tables of the results into the pages that show them, and checks that they are not out of date.

python benchmarks/tables.py [--check]

A result file in `benchmarks/results/DEVICE` holds its table beside its figures. On a page, the text between
`<!-- table: NAME -->` and `<!-- end of table -->` shows the table of every device that has a result of that name, and
the commit that was measured. With --check nothing is written: the program fails if a page differs from the results, or
if README shows a result without naming its commit.
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
from training.program import run_program

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGES: Final = (ROOT / "benchmarks" / "README.md", ROOT / "docs" / "measurements.md")
_MARKED: Final = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_RESULT_LINK: Final = re.compile(r"\]\((benchmarks/results/[^)]+\.json)\)")
_COMMIT_DIGITS: Final = 7


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
    """Compares the pages with the results, and the commits that README names with those of the results.

    Raises:
        DataError: A page shows other figures than the results, or README a result without its commit.
    """
    check_pages()
    require_commits((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)


def check_pages() -> None:
    """Compares the pages with the results.

    Raises:
        DataError: A page shows other figures than the results.
    """
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if text != with_tables(text, page.parent):
            raise DataError(f"{page.relative_to(ROOT)} shows other figures than the results", remedy="run: make tables")


def require_commits(readme: str, root: Path) -> None:
    """Checks that each line that links to a result names the commit that was measured.

    Raises:
        DataError: A line names none, or another one.
    """
    for line in readme.splitlines():
        for link in _RESULT_LINK.findall(line):
            commit = _commit(_read(root / link))
            if f"`{commit}`" not in line:
                raise DataError(
                    f"README.md shows {link} without the commit that was measured", limit=commit, remedy="name it there"
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
        return "".join([marked[1], *(_shown(path, folder) for path in paths), marked[3]])

    return _MARKED.sub(filled, page)


def _shown(path: Path, folder: Path) -> str:
    result = _read(path)
    if "markdown" not in result:
        raise DataError(f"{path} is no result with a table", remedy="measure again, or restore it")
    link = Path(os.path.relpath(path, folder)).as_posix()
    text = str(result["markdown"])
    between = "\n\n" if text.startswith("|") else " "  # a table needs a line of its own
    return f"[Result]({link}) at commit `{_commit(result)}`.{between}{text}\n\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise DataError(f"{path} is no result", value=error, remedy="measure again, or restore it") from error


def _commit(result: dict[str, Any]) -> str:
    return str(result["machine"]["git_commit"][:_COMMIT_DIGITS])


if __name__ == "__main__":
    main()
