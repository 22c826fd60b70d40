"""truth.html: how often a table is right, for people; the diagram is SVG in the page."""

import html
from collections.abc import Iterable, Sequence
from typing import Final, get_args

from models.metrics import NUM_BINS, ReliabilityBin, Share, share
from models.ranking import VerdictRank
from serving.folder.page import page
from serving.folder.truth import TruthReport

TRUTH_PAGE: Final = "truth.html"
_MOST_LISTED: Final = 50
_SIDE, _LEFT, _TOP = 300, 62, 12  # of the diagram and its place, px
_COUNTS_TOP, _COUNTS_HEIGHT = _TOP + _SIDE + 14, 60
_STYLE: Final = """
body { max-width: 50rem }
table { border-collapse: collapse; margin: .6rem 0 }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto; font-size: 12px } svg text { fill: currentColor }
svg .axis { stroke: currentColor; fill: none } svg .even { stroke: currentColor; stroke-dasharray: 4 4; opacity: .6 }
svg .point { fill: #0072b2 } svg .interval { stroke: #0072b2; stroke-width: 1.5 } svg .count { fill: #8888 }
@media (prefers-color-scheme: dark) { svg .point { fill: #56b4e9 } svg .interval { stroke: #56b4e9 } }
"""


def truth_page(report: TruthReport) -> str:
    """Returns the page."""
    title = f"How often {report.bundle_name} {report.bundle_version} is right on these photographs"
    return page(title, _STYLE, "\n".join([_counted(report), _ranks(report), _verdicts(report), *_species(report)]))


def _counted(report: TruthReport) -> str:
    sentences = [f"True names: <code>{_text(report.column)}</code> of {_rows(report.num_rows)}."]
    if report.num_without_truth:
        sentences.append(f"Not counted, because without a true name: {_rows(report.num_without_truth)}.")
    if report.num_failed:
        sentences.append(f"Not right, because no photograph could be read: {_rows(report.num_failed)}.")
    if report.num_unknown:
        sentences.append(
            f"Not right, because the model does not know the true name: {_rows(report.num_unknown)}, of which it named "
            f"{report.num_unknown_named:,} as a species."
        )
    if report.trained_on is None:
        sentences.append("It is not known whether the model was trained with some of these photographs.")
    elif report.trained_on:
        splits = ", ".join(f"{number:,} {split}" for split, number in report.trained_on.items())
        sentences.append(
            f"In the manifest that the model was trained with: {splits} photographs. Figures of photographs that are "
            "not of its test split are too high."
        )
    return f"<p>{'<br>'.join(sentences)}</p>{_unknown(report)}"


def _unknown(report: TruthReport) -> str:
    if not report.unknown:
        return ""
    listed = _table(("true name", "#rows"), ((name, f"{count:,}") for name, count in report.unknown.items()))
    return f"<details><summary>True names that the model does not know</summary>{listed}</details>"


def _ranks(report: TruthReport) -> str:
    columns = ("rank", "#right", "#of rows it can know", "#mean of the names")
    rows = [
        (rank, _share_of(each.right), _share_of(each.right_of_known), _share(each.macro_of_known))
        for rank, each in report.by_rank.items()
    ]
    explained = (
        "How often the most likely taxon is right, with the 95 % interval: of all rows; without those that could not "
        "be read or whose true name the model does not know; and of these, the mean of each name's share, so that rare "
        "plants count as much as common ones. A true name that is a genus does not count at the rank species."
    )
    return f"<h2>Right names</h2><p>{explained}</p>{_table(columns, rows)}"


def _verdicts(report: TruthReport) -> str:
    right = {rank: names.right for rank, names in report.verdicts.items()}
    rows = [
        (verdict.replace("_", " "), f"{report.num_verdicts.get(verdict, 0):,}", _share_of(right.get(verdict)))
        for verdict in get_args(VerdictRank)
    ]
    explained = (
        "The verdict is the most precise rank of which the model is sure enough. It is compared with true names of the "
        "same rank or a more precise one."
    )
    return f"<h2>Verdicts</h2><p>{explained}</p>{_table(('verdict', '#rows', '#right'), rows)}"


def _species(report: TruthReport) -> list[str]:
    """Says more about the answered rows whose species the model knows."""
    if report.species is None:
        return []
    found = report.species
    mistakes = [(each.right, each.named, f"{each.count:,}") for each in found.confusions]
    names = [(each.name, f"{each.num_rows:,}", f"{each.right:.1%}") for each in found.names]
    return [
        f"<h2>Can the scores be believed?</h2><p>Expected calibration error: {_share_of(found.ece)} rows. A point is "
        "the rows with about the same score, with the 95 % interval of how many are right. On the dashed line, "
        "scores are as high as the share of right names; below it, they are too high.</p>",
        diagram(found.reliability),
        f"<h2>Mistakes</h2>{_table(('true name', 'most likely taxon', '#rows'), mistakes)}" if mistakes else "",
        f"<h2>Species</h2><p>The least often recognized first.</p>{_table(('true name', '#rows', '#right'), names)}",
    ]


def diagram(bins: Sequence[ReliabilityBin]) -> str:
    """Draws the reliability diagram, and below it how many rows each range of scores has."""
    width, height = _LEFT + _SIDE + 12, _COUNTS_TOP + _COUNTS_HEIGHT + 40
    most = max(each.num_pictures for each in bins)
    parts = [
        f'<path class="axis" d="M{_LEFT} {_TOP}V{_y(0)}H{_x(1)}"/>',
        f'<path class="even" d="M{_x(0)} {_y(0)}L{_x(1)} {_y(1)}"/>',
        *(f'<text x="{_LEFT - 6}" y="{_y(at) + 4}" text-anchor="end">{at:.0%}</text>' for at in (0, 0.5, 1)),
        *(_point(each) for each in bins),
        *(_count(each, most) for each in bins),
        *(
            f'<text x="{_x(at)}" y="{_COUNTS_TOP + _COUNTS_HEIGHT + 16}" text-anchor="middle">{at:g}</text>'
            for at in (0, 0.5, 1)
        ),
        f'<text x="{_x(0.5)}" y="{height - 4}" text-anchor="middle">score of the most likely taxon</text>',
        f'<text x="14" y="{_y(0.5)}" text-anchor="middle" transform="rotate(-90 14 {_y(0.5)})">right</text>',
        f'<text x="{_LEFT - 6}" y="{_COUNTS_TOP + _COUNTS_HEIGHT}" text-anchor="end">rows</text>',
    ]
    label = "Reliability diagram: share of right names by score"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"{''.join(parts)}</svg>"
    )


def _point(each: ReliabilityBin) -> str:
    x = _x(each.confidence)
    low, high = share(round(each.accuracy * each.num_pictures), each.num_pictures).interval_95
    hint = f"score {each.confidence:.2f}: {each.accuracy:.1%} of {each.num_pictures:,} rows are right"
    return (
        f'<g><title>{hint}</title><path class="interval" d="M{x} {_y(low)}V{_y(high)}"/>'
        f'<circle class="point" cx="{x}" cy="{_y(each.accuracy)}" r="4"/></g>'
    )


def _count(each: ReliabilityBin, most: int) -> str:
    height = round(_COUNTS_HEIGHT * each.num_pictures / most, 1)
    return (
        f'<rect class="count" x="{_x(each.low)}" y="{_COUNTS_TOP + _COUNTS_HEIGHT - height}" '
        f'width="{round(_SIDE / NUM_BINS - 1, 1)}" height="{height}"><title>{each.num_pictures:,} rows</title></rect>'
    )


def _x(value: float) -> float:
    return round(_LEFT + _SIDE * value, 1)


def _y(value: float) -> float:
    return round(_TOP + _SIDE * (1 - value), 1)


def _rows(number: int) -> str:
    return f"{number:,} row" if number == 1 else f"{number:,} rows"


def _share_of(found: Share | None) -> str:
    return "" if found is None else f"{_share(found)} of {found.num_pictures:,}"


def _share(found: Share | None) -> str:
    if found is None:
        return ""
    low, high = found.interval_95
    return f"{found.value:.1%} ({low * 100:.1f} to {high * 100:.1f})"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; columns with a # are numbers, and what does not fit on a page is left to truth.json."""
    kinds = [' class="number"' if column.startswith("#") else "" for column in columns]
    head = "".join(f"<th{kind}>{_text(name.lstrip('#'))}</th>" for name, kind in zip(columns, kinds, strict=True))
    listed = list(rows)
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_text(cell)}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>"
        for row in listed[:_MOST_LISTED]
    )
    others = len(listed) - _MOST_LISTED
    more = f'<p class="more">{others:,} more are in truth.json.</p>' if others > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(text: str) -> str:
    return html.escape(text)
