"""The report as report.html, a page of plain tables that works offline and without scripts, and as report.json.

All texts of data sets are escaped. Long lists are cut on the page, with a note; the JSON has them whole.
"""

import html
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from training.dataset.report.findings import Report
from training.dataset.sources.record import SPLITS

HTML_FILE: Final = "report.html"
JSON_FILE: Final = "report.json"
_MOST_ROWS: Final = 200
_MOST_SHOWN: Final = 10  # names in a sentence
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}: report of the preparation</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 0 0 1rem; }}
caption {{ text-align: left; font-weight: bold; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""
_NAMES: Final = {
    "merged": "Several names, one taxon: an answer lists the plant once",
    "genus_level": "Classes of a genus only: their pictures count for the genus, not for a species",
    "common": "Common names alone: these classes have no genus and count for none",
    "misspelt": "Genera that may be misspelt: they are not among 31,004 listed genera, and nothing was changed",
    "similar": "Similar names: nothing was merged; if one is wrong, correct it in the collection",
}


def report_files(report: Report) -> dict[str, bytes]:
    """Returns the page and the JSON, by file name."""
    facts = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    return {HTML_FILE: render_page(report).encode(), JSON_FILE: facts}


def render_page(report: Report) -> str:
    """Renders the page."""
    splits = ", ".join(f"{count:,} {split}" for split, count in report.by_split.items() if count)
    result = (
        f"Result: {_plural(report.num_pictures, 'picture')} in {_plural(report.num_outputs, 'class', 'classes')} "
        f"({_plural(report.num_taxa, 'taxon', 'taxa')}) from {_plural(len(report.sources), 'source')}: {splits}; "
        f"{_plural(report.num_left_out, 'picture was', 'pictures were')} left out."
    )
    parts = [
        _HEAD.format(title=html.escape(report.name)),
        _paragraphs(report.description, result, *report.notes, *advice(report)),
        _sources(report),
        _left_out(report),
        _groups("Same picture, two names", "Of a real copy one name is wrong.", report.two_names),
        _groups("Near copies", "The pictures of each group are in one split.", report.near_copies),
        _class_sizes(report),
        "<h2>Names to check</h2>\n",
        *(
            _table(
                title,
                ("Name", "As written", "Remark"),
                [(each.name, ", ".join(each.members), each.explanation) for each in getattr(report.names, kind)],
            )
            for kind, title in _NAMES.items()
        ),
        _licenses(report),
        "<h2>Rules</h2>\n",
        _table("Rules of the collection; edit it to change them", ("Rule", "Value"), list(report.rules.items())),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def advice(report: Report) -> list[str]:
    """Returns sentences on names that are not scientific, pictures with two names, and classes without validation."""
    sentences = []
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
    """Returns the number of the names and the first ones: "12 (a, b, and 10 more)"."""
    shown = ", ".join(names[:most])
    more = f", and {len(names) - most:,} more" if len(names) > most else ""
    return f"{len(names):,} ({shown}{more})"


def _sources(report: Report) -> str:
    header = ("Source", "Layout", "Pictures", "Classes", *SPLITS, "Left out", "Median short side", "With day", "Note")
    rows = [
        (
            source.name,
            source.layout,
            source.num_pictures,
            source.num_outputs,
            *(source.by_split[split] for split in SPLITS),
            source.num_left_out,
            f"{source.median_short_side_px:,} px",
            source.num_dated,
            source.note,
        )
        for source in report.sources
    ]
    return "<h2>Sources</h2>\n" + _table("Pictures by source and split", header, rows)


def _left_out(report: Report) -> str:
    if not report.reasons:
        return "<h2>Left out</h2>\n<p>Nothing: every picture of the sources is used.</p>\n"
    parts = ["<h2>Left out</h2>\n"]
    for reason in report.reasons:
        entries = [(entry.picture, entry.reason) for entry in report.left_out if entry.code == reason.code]
        title = f"{reason.title} ({reason.code}): {_plural(reason.num_pictures, 'picture')}"
        parts.append(_paragraphs(f"{title}. {reason.remedy}"))
        parts.append(_table(title, ("Picture", "Reason"), entries))
    return "".join(parts)


def _class_sizes(report: Report) -> str:
    missing = [
        f"{_plural(report.without[split], 'class has', 'classes have')} no {split} picture."
        for split in SPLITS
        if report.by_split[split] and report.without[split]
    ]
    rows = [
        (size.scientific_name, size.key, size.num_pictures, *(size.by_split.get(split, 0) for split in SPLITS))
        for size in report.few
    ]
    title = f"Classes with fewer than {_plural(report.few_pictures, 'picture')}"
    table = _table(title, ("Class", "Output", "Pictures", *SPLITS), rows)
    return "<h2>Class sizes</h2>\n" + _paragraphs(*missing) + table


def _groups(title: str, meaning: str, groups: Sequence[Sequence[str]]) -> str:
    text = f"{title}: {_plural(len(groups), 'group')}"
    table = _table(title, ("Pictures",), [(", ".join(group),) for group in groups])
    return f"<h2>{text}</h2>\n" + (_paragraphs(meaning) + table if groups else "")


def _licenses(report: Report) -> str:
    parts = ["<h2>Licenses</h2>\n"]
    for source in report.sources:
        summary = report.licenses.get(source.name)
        if summary is None:
            nothing = (
                "Nothing is known of its licenses. Ask before you share its pictures or a network trained on them."
            )
            parts.append(_paragraphs(f"{source.name}: {nothing}"))
            continue
        authors = _plural(summary.num_authors, "author is", "authors are")
        parts.append(_paragraphs(f"{source.name}: {summary.sentence} {authors} named."))
        rows = [(text or "unknown", count) for text, count in summary.licenses.items()]
        parts.append(_table(f"Pictures of {source.name} by license", ("License", "Pictures"), rows))
    return "".join(parts)


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table of the first rows; nothing if there are none."""
    if not rows:
        return ""
    lines = [f"<table>\n<caption>{html.escape(caption)}</caption>\n<tr>"]
    lines += [f'<th scope="col">{html.escape(title)}</th>' for title in header]
    for row in rows[:_MOST_ROWS]:
        lines.append("</tr>\n<tr>")
        lines += [f"<td>{html.escape(f'{cell:,}' if isinstance(cell, int) else str(cell))}</td>" for cell in row]
    lines.append("</tr>\n</table>\n")
    if len(rows) > _MOST_ROWS:
        lines.append(f"<p>The first {_MOST_ROWS} of {len(rows):,} entries; all of them are in {JSON_FILE}.</p>\n")
    return "".join(lines)


def _paragraphs(*sentences: str) -> str:
    return "".join(f"<p>{html.escape(sentence)}</p>\n" for sentence in sentences if sentence)


def _plural(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
