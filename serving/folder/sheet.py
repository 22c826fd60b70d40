"""A contact sheet: a page with the photographs and their answers, the least certain first."""

import html
import os
from collections.abc import Iterable
from heapq import nsmallest
from pathlib import Path
from typing import Final
from urllib.parse import quote

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
p { margin: .2rem 0; overflow-wrap: anywhere } .name { font-weight: 600; font-style: italic }
@media (prefers-color-scheme: dark) { img { background: #333 } }
"""


def contact_sheet(rows: Iterable[Row], photographs: str, target: Path) -> str:
    """Returns the page. Photographs are linked where they are, not copied.

    Args:
        rows: The rows of the table.
        photographs: Folder or address where their paths start.
        target: Where the page will be, so that links to files are relative to it.
    """
    shown = nsmallest(MAX_SHOWN, enumerate(rows), key=lambda pair: (_certainty(pair[1]), pair[0]))
    figures = "\n".join(_figure(row, _link(row["path"], photographs, target)) for _, row in shown)
    return page("Plants, the least certain first", _STYLE, f"<p>{len(shown):,} rows.</p>\n<ol>\n{figures}\n</ol>")


def _certainty(row: Row) -> float:
    """Failures come last: there is no answer to look at."""
    return 2.0 if row["status"] == "failed" else float(row["score_1"] or 0.0)


def _figure(row: Row, link: str) -> str:
    name = row["verdict_name"] or _WITHOUT_NAME[row["verdict_rank"]]
    best = row["error"] if row["status"] == "failed" else f"{row['name_1']} {row['score_1']:.2f}"
    return (
        f'<li><a href="{link}"><img loading="lazy" src="{link}" alt="{html.escape(row["path"])}"></a>'
        f'<p class="name">{html.escape(name)}</p><p>{html.escape(best or "")}</p>'
        f'<p class="more">{html.escape(row["path"])}</p></li>'
    )


def _link(path: str, photographs: str, target: Path) -> str:
    if "://" in photographs:
        return html.escape(f"{photographs.rstrip('/')}/{quote(path)}")
    return html.escape(quote(os.path.relpath(Path(photographs) / path, target.parent).replace(os.sep, "/")))
