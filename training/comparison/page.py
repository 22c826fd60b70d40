"""The comparison as files: comparison.html, which works offline and without scripts, and comparison.json."""

from pathlib import Path
from typing import Final, get_args

import msgspec

from models.ranking import VerdictRank
from training.comparison.schema import Comparison
from training.pages.rendering import render

HTML_FILE: Final = "comparison.html"
JSON_FILE: Final = "comparison.json"
_TEMPLATE: Final = Path(__file__).with_name("page.html")
_MOST_ROWS: Final = 200
_MOST_GENERA: Final = 15


def comparison_files(comparison: Comparison) -> dict[str, bytes]:
    """Returns the page and the JSON, by file name."""
    facts = msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n"
    return {HTML_FILE: render_page(comparison).encode(), JSON_FILE: facts}


def render_page(comparison: Comparison) -> str:
    """Renders the page. Long lists are cut, with a note; the JSON has them whole."""
    by_loss = sorted(comparison.genera, key=lambda row: (row.new_top1 - row.old_top1, row.genus))
    return render(
        _TEMPLATE,
        {"percent": _percent, "points": _points},
        it=comparison,
        ranks=get_args(VerdictRank),
        lowest_genera=comparison.genera[:_MOST_GENERA],
        lost_genera=[row for row in by_loss if row.new_top1 < row.old_top1][:_MOST_GENERA],
        most_rows=_MOST_ROWS,
    )


def _percent(share: float) -> str:
    """Formats a share; the space does not break the line."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _points(share: float) -> str:
    """Formats a difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.2f}"
