"""The report as report.html, a page of plain tables that works offline and without scripts, and as report.json.

The page is the template page.html.jinja. All texts of data sets are escaped. Long lists are cut on the page, with a
note; the JSON has them whole.
"""

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from models.atomic_file import as_json
from models.errors import some_of
from training.dataset.report.findings import Report
from training.dataset.sources.record import SPLITS

HTML_FILE: Final = "report.html"
JSON_FILE: Final = "report.json"
_MOST_SHOWN: Final = 10  # names in a sentence
_MOST_CLASSES: Final = 100  # the same where each may be a class that is lost


def report_files(report: Report) -> dict[str, bytes]:
    """Returns the page and the JSON, by file name."""
    return {HTML_FILE: render_page(report).encode(), JSON_FILE: as_json(report)}


def render_page(report: Report) -> str:
    """Renders the page."""
    environment = Environment(
        autoescape=True, finalize=_shown, keep_trailing_newline=True, trim_blocks=True, undefined=StrictUndefined
    )
    template = environment.from_string(Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8"))
    return template.render(report=report, advice=tuple(advice(report)), splits=SPLITS, json_file=JSON_FILE)


def _shown(value: object) -> Markup:
    """Escapes a value for the page; what is markup already stays."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(f"{value:,}" if isinstance(value, int) else str(value)))


def advice(report: Report) -> list[str]:
    """Returns sentences on names, pictures with two names, and classes without validation."""
    sentences = []
    if report.names.joined:
        joined = [f"{finding.name} = {' = '.join(finding.members)}" for finding in report.names.joined]
        sentences.append(f"Several classes of one source became one taxon: {_listed(joined, _MOST_CLASSES)}.")
    if report.names.genus_level:
        names = _listed([finding.name for finding in report.names.genus_level], _MOST_CLASSES)
        sentences.append(f"Classes that name no species, and so count for their genus: {names}.")
    if report.names.misspelt:
        misspelt = [f"{finding.name}: {finding.explanation}" for finding in report.names.misspelt]
        sentences.append(f"Genera that may be misspelt: {_listed(misspelt)}.")
    if report.names.common:
        names = _listed([finding.name for finding in report.names.common])
        sentences.append(
            f"Class names that cannot be read as plants, and so have no genus: {names}. "
            "Name the folders Common (Scientific), or give a table the column genus."
        )
    sentences.append(_on_validation(report))
    if report.two_names:
        groups = _listed([" = ".join(group) for group in report.two_names], most=3)
        sentences.append(f"Same picture, or nearly, with two names: {groups}. Of a real copy one name is wrong.")
    return [sentence for sentence in sentences if sentence]


def _on_validation(report: Report) -> str:
    share = float(report.rules["validation_share"])
    publishing = {source.name for source in report.sources if "validation" in source.published}
    if share == 0 or len(publishing) == len(report.sources):
        return ""
    small = [
        (size.scientific_name, number)
        for size in reversed(report.classes)
        if "validation" not in size.by_split and size.key.partition(":")[0] not in publishing
        # Of these pictures the validation split is cut.
        if (number := size.by_split.get("train", 0) + size.by_split.get("calibration", 0))
    ]
    if not small:
        return ""
    sizes = _listed([f"{name} {number}" for name, number in small])
    fewest = min((number for _, number in small if number > 1), default=0)
    remedy = "A class needs two pictures or more for that."
    if fewest:
        # The number of validation pictures is rounded (`training.dataset.splits`), so just over half a one is enough.
        share = math.floor(100 * 0.5 / fewest + 1) / 100
        remedy = f"A larger share gives them one: --validation-share {share} (in a collection: validation_share)."
    return f"Classes too small for a validation picture, with their training pictures: {sizes}. {remedy}"


def _listed(names: Sequence[str], most: int = _MOST_SHOWN) -> str:
    """Returns the number of the names and the first ones: "12 (a, b and 10 more)"."""
    return f"{len(names):,} ({some_of(names, most)})"
