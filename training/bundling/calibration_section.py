"""The section of the model card on calibration: what it was fitted on, the thresholds, and the reliability diagram."""

from collections.abc import Mapping, Sequence
from typing import Final

from models.verdict import Promise
from training.bundling.thresholds import MIN_NAMED, FittedThreshold, FittedThresholds
from training.evaluation.rank_scores import RANKS, Rank
from training.evaluation.reliability import NUM_BINS, ReliabilityBin

ENOUGH_PICTURES: Final = 1000
"""With fewer calibration pictures the card warns: their calibration error varies by several points by chance."""
_BAR: Final = 20  # characters of a full bar


def calibration_section(
    fit: str,
    thresholds: FittedThresholds,
    areas: Mapping[Rank, float],
    diagrams: Mapping[str, Sequence[ReliabilityBin]],
) -> str:
    """Writes the section.

    Args:
        fit: What the tables were fitted on, from `describe_fit`.
        thresholds: The thresholds and their promises.
        areas: Area under the risk-coverage curve of test pictures, for each rank.
        diagrams: Reliability diagrams of test pictures: "all", and each source.
    """
    of_sources = {name: bins for name, bins in diagrams.items() if name != "all"}
    named = {"all": diagrams["all"]} | (of_sources if len(of_sources) > 1 else {})
    tables = [f"Reliability, {name} test pictures:\n\n{_table(bins)}" for name, bins in named.items()]
    parts = ["## Calibration", fit, _verdicts(thresholds), _risk_coverage(areas)]
    return "\n\n".join([*parts, *tables])


def describe_fit(num_pictures: int, num_plants: int, data: str) -> str:
    """Says what was fitted on which pictures, and warns if they are few."""
    few = num_pictures < ENOUGH_PICTURES
    warning = " These are few: trust the interval of `ece` above more than the figure." if few else ""
    return (
        f"The temperature was fitted on {num_pictures:,} pictures of {num_plants:,} plants ({data}), every plant with "
        f"the same weight.{warning}"
    )


def describe_threshold(rank: Rank, threshold: float, promise: Promise | None) -> str:
    """Says from which score a rank is named, and what is promised of the names."""
    start = f"{rank}: named from a score of {threshold:.3f}"
    if promise is None:
        return f"{start}, without a promise"
    return (
        f"{start}; with {promise.confidence:.0%} confidence at most {promise.max_risk:.0%} of the names are wrong "
        f"({promise.num_wrong} of {promise.num_named} calibration plants)"
    )


def _verdicts(fitted: FittedThresholds) -> str:
    lines = []
    for rank in RANKS:
        one: FittedThreshold = getattr(fitted, rank)
        counted = "" if one.promise else f" ({one.num_wrong} wrong of {one.num_named} calibration plants)"
        lines.append(f"* {describe_threshold(rank, one.threshold, one.promise)}{counted}")
    without = (
        f"\n\nA rank without a promise names too few calibration plants (under {MIN_NAMED}) or too many wrongly: its "
        "threshold is the least at which 95 % of them were right, and says little about other plants."
    )
    return "\n".join(lines) + (without if any(getattr(fitted, rank).promise is None for rank in RANKS) else "")


def _risk_coverage(areas: Mapping[Rank, float]) -> str:
    figures = ", ".join(f"{rank} {area:.3f}" for rank, area in areas.items())
    return f"Area under the risk-coverage curve of the test pictures (0 is best): {figures}."


def _table(bins: Sequence[ReliabilityBin]) -> str:
    """Draws a diagram as a table: each bar is the accuracy, and its mark stands at the mean confidence."""
    lines = ["| confidence | pictures | mean | right | |", "|---|---:|---:|---:|---|"]
    for each in bins:
        span = f"{each.low:.2f} to {each.low + 1 / NUM_BINS:.2f}"
        cells = (span, str(each.num_pictures), f"{each.confidence:.3f}", f"{each.accuracy:.3f}", f"`{_bar(each)}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _bar(each: ReliabilityBin) -> str:
    filled, mark = round(each.accuracy * _BAR), min(int(each.confidence * _BAR), _BAR - 1)
    bar = "#" * filled + "." * (_BAR - filled)
    return f"{bar[:mark]}!{bar[mark + 1 :]}"
