"""The section of the model card on calibration: what it was fitted on, the thresholds, and the reliability diagram."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from models.calibration import Calibration
from models.metrics import NUM_BINS, ReliabilityBin
from models.ranking import RANKS, Promise, Rank
from models.taxonomy import Taxonomy
from training.bundling.calibration import MOST_PICTURES
from training.bundling.tables import FittedTables
from training.bundling.thresholds import MIN_NAMED, FittedThreshold, FittedThresholds

ENOUGH_PICTURES: Final = 1000
"""With fewer calibration pictures the card warns: their calibration error varies by several points by chance."""
_MOST_NAMES: Final = 50
_BAR: Final = 20  # characters of a full bar


def calibration_section(
    fitted: FittedTables,
    taxonomy: Taxonomy,
    areas: Mapping[Rank, float],
    diagrams: Mapping[str, Sequence[ReliabilityBin]],
) -> str:
    """Writes the section.

    Args:
        fitted: The tables and thresholds.
        taxonomy: Names the taxa.
        areas: Area under the risk-coverage curve of test pictures, for each rank.
        diagrams: Reliability diagrams of test pictures: "all", and each source.
    """
    of_sources = {name: bins for name, bins in diagrams.items() if name != "all"}
    named = {"all": diagrams["all"]} | (of_sources if len(of_sources) > 1 else {})
    tables = [f"Reliability, {name} test pictures:\n\n{_table(bins)}" for name, bins in named.items()]
    parts = [
        "## Calibration",
        describe_fit(fitted.calibration),
        _verdicts(fitted.thresholds),
        _risk_coverage(areas),
        _rejection(fitted),
        _candidates(fitted.calibration, taxonomy),
    ]
    return "\n\n".join([*parts, *tables])


def describe_fit(calibration: Calibration) -> str:
    """Says which pictures the tables were fitted on, and warns if they are few."""
    fitted_on = calibration.fitted_on
    assert fitted_on is not None
    few = fitted_on.num_pictures < ENOUGH_PICTURES
    warning = " These are few: trust the interval of `ece` more than the figure." if few else ""
    if fitted_on.num_pictures > MOST_PICTURES:
        warning = f" The temperature comes from whole plants among them, {MOST_PICTURES:,} pictures at most."
    return (
        f"Temperature, thresholds and tables were fitted on {fitted_on.num_pictures:,} pictures of "
        f"{fitted_on.num_plants:,} plants ({fitted_on.data}; {fitted_on.date}), all plants alike.{warning}"
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
        "\n\nA rank has no promise if its threshold was given, if it names too few calibration plants (under "
        f"{MIN_NAMED}) or too many wrongly, or if these are of other data. A threshold that was not given is then the "
        "least that names 20 of them or more, 95 % of these rightly, or else 1: the rank is not named."
    )
    return "\n".join(lines) + (without if any(getattr(fitted, rank).promise is None for rank in RANKS) else "")


def _risk_coverage(areas: Mapping[Rank, float]) -> str:
    figures = ", ".join(f"{rank} {area:.3f}" for rank, area in areas.items())
    return f"Area under the risk-coverage curve of the test pictures (0 is best): {figures}."


def _rejection(fitted: FittedTables) -> str:
    """Says what is answered with no name although the network has one."""
    unknown = "A plant that is unlike the calibration plants gets no name."
    if fitted.left_out is not None:
        named = fitted.left_out.named_species
        unknown += (
            " The cutoff stops 90 % of the calibration plants judged as if their taxa were unknown, but at most 15 % of"
            f" them judged as they are. As if unknown, {named.value:.1%} of {named.num_pictures:,} are named a species"
            f" (AUROC {fitted.left_out.auroc:.3f}). The network was trained with their taxa: of plants that are new to"
            " it, more are named."
        )
    if fitted.rejection is None:
        return f"{unknown} The bundle cannot tell plants from other things: it was exported without pictures of these."
    found = fitted.rejection
    return (
        f"{unknown}\n\nThe plant head was fitted on training pictures and on {found.accepted.num_pictures:,} "
        f"{found.data}; its cutoff keeps 95 % of the calibration plants or more. Of these other things, each judged by"
        f" a fit that left it out, {found.accepted.value:.1%} are taken for plants and {found.named.value:.1%} are"
        f" named (AUROC {found.auroc:.3f}). The cutoff was set on these pictures, so others pass it more often."
    )


def _candidates(calibration: Calibration, taxonomy: Taxonomy) -> str:
    """Says for which taxa the candidate sets were calibrated, and names the others."""
    table = calibration.conformal
    assert table is not None
    without = [taxonomy.taxa[index].scientific_name for index in np.flatnonzero(table.num_plants_T == 0)]
    start = f"Candidate sets were calibrated on {len(table.conformity_N):,} plants"
    if not without:
        return f"{start} of all {len(taxonomy.taxa):,} taxa."
    more = f" and {len(without) - _MOST_NAMES:,} more" if len(without) > _MOST_NAMES else ""
    return (
        f"{start}. {len(without):,} of {len(taxonomy.taxa):,} taxa have none of these plants, and macro coverage says "
        f"nothing of them: {', '.join(sorted(without)[:_MOST_NAMES])}{more}."
    )


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
