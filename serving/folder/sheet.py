"""A contact sheet: a page with the photographs and their answers, the least certain first."""

import html
import os
from collections.abc import Iterable
from heapq import nsmallest
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

from serving.folder.bucket import is_bucket
from serving.folder.page import page
from serving.folder.rows import Row

SHEET_FILE: Final = "results.html"
MAX_SHOWN: Final = 1000
"""Photographs on a page; more would make a browser slow."""
_WITHOUT_NAME: Final = {"not_a_plant": "not a plant", "uncertain": "uncertain", None: "failed"}
_STYLE: Final = """
ol { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 1rem; padding: 0 }
li { list-style: none }
img { width: 100%; height: 11rem; object-fit: cover; background: #eee }
p { margin: .2rem 0; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { img { background: #333 } }
"""


def contact_sheet(rows: Iterable[Row], photographs: str, target: Path) -> str:
    """Returns the page. Photographs are linked where they are, not copied.

    Args:
        rows: The rows of the table.
        photographs: Folder or address where their paths start.
        target: Where the page will be, so that links to files are relative to it.
    """
    numbers = count()
    shown = nsmallest(MAX_SHOWN, zip(rows, numbers, strict=False), key=lambda pair: (_certainty(pair[0]), pair[1]))
    total = next(numbers)
    figures = "\n".join(_figure(row, _link(row["path"], photographs, target)) for row, _ in shown)
    counted = f"{total:,} rows." if total == len(shown) else f"{len(shown):,} of {total:,} rows."
    return page("Plants, the least certain first", _STYLE, f"<p>{counted}</p>\n<ol>\n{figures}\n</ol>")


def _certainty(row: Row) -> float:
    """Failures come last: there is no answer to look at."""
    return 2.0 if row["status"] == "failed" else float(row["score_1"] or 0.0)


def _figure(row: Row, link: str) -> str:
    path = html.escape(row["path"])
    image = f'<a href="{link}"><img loading="lazy" src="{link}" alt="{path}"></a>'
    return f'<li>{image}{_verdict(row)}<p class="more">{path}</p></li>'


def _verdict(row: Row) -> str:
    """Says the verdict with its score, and below it the most likely taxon if that is another name, or the error."""
    name = row["verdict_name"]
    if name is None:
        head = f"<p><b>{_WITHOUT_NAME[row['verdict_rank']]}</b></p>"
    else:
        head = f"<p><b><i>{html.escape(name)}</i></b> {row['verdict_score']:.2f}</p>"
    if row["status"] == "failed":
        return f"{head}<p>{html.escape(row['error'] or '')}</p>"
    if row["name_1"] == name:
        return head
    return f"{head}<p>most likely <i>{html.escape(row['name_1'])}</i> {row['score_1']:.2f}</p>"


def _link(path: str, photographs: str, target: Path) -> str:
    if is_bucket(photographs):
        return html.escape(f"{photographs.rstrip('/')}/{quote(path)}")
    return html.escape(quote(os.fsencode(os.path.relpath(Path(photographs) / path, target.parent))))  # any bytes
