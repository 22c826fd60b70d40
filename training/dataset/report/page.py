"""The report as files: report.html, a single file that works offline and without scripts, and report.json."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from training.dataset.report.schema import Report
from training.dataset.sources.record import SPLITS, LeftOut
from training.pages.rendering import render

HTML_FILE: Final = "report.html"
JSON_FILE: Final = "report.json"
_TEMPLATE: Final = Path(__file__).with_name("page.html")
_MOST_ROWS: Final = 200


def report_files(report: Report, sheets: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the page and the JSON, by file name.

    Args:
        report: Result of the preparation.
        sheets: Source -> its contact sheet, a JPEG.
    """
    facts = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    return {HTML_FILE: render_page(report, sheets).encode(), JSON_FILE: facts}


def render_page(report: Report, sheets: Mapping[str, bytes]) -> str:
    """Renders the page. Long lists are cut, with a note; the JSON has them whole. Texts of data sets are escaped."""
    from training.dataset.report.plots import plots  # importing matplotlib takes a second

    entries: dict[str, list[LeftOut]] = {reason.code: [] for reason in report.reasons}
    for entry in report.left_out:
        if len(entries[entry.code]) < _MOST_ROWS:
            entries[entry.code].append(entry)
    return render(
        _TEMPLATE,
        {"file_size": _file_size, "share": _share},
        report=report,
        entries=entries,
        most_rows=_MOST_ROWS,
        splits=SPLITS,
        plots=plots(report) if report.num_pictures else {},
        sheets={source: base64.b64encode(jpeg).decode() for source, jpeg in sheets.items()},
    )


def _file_size(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes} bytes"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"
