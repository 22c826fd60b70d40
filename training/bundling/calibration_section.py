"""The section of the model card on calibration: what it was fitted on, and the reliability diagram."""

from collections.abc import Mapping, Sequence
from typing import Final

from training.evaluation.reliability import NUM_BINS, ReliabilityBin

ENOUGH_PICTURES: Final = 1000
"""With fewer calibration pictures the card warns: their calibration error varies by several points by chance."""
_BAR: Final = 20  # characters of a full bar


def calibration_section(
    num_pictures: int, num_plants: int, data: str, diagrams: Mapping[str, Sequence[ReliabilityBin]]
) -> str:
    """Writes the section.

    Args:
        num_pictures: Number of pictures that the temperature was fitted on.
        num_plants: Number of plants that they show.
        data: Data and split of these pictures.
        diagrams: Reliability diagrams of test pictures: "all", and each source.
    """
    few = num_pictures < ENOUGH_PICTURES
    warning = " These are few: trust the interval of `ece` above more than the figure." if few else ""
    fitted = (
        f"The temperature was fitted on {num_pictures:,} pictures of {num_plants:,} plants ({data}), every plant with "
        f"the same weight.{warning}"
    )
    of_sources = {name: bins for name, bins in diagrams.items() if name != "all"}
    named = {"all": diagrams["all"]} | (of_sources if len(of_sources) > 1 else {})
    tables = [f"Reliability, {name} test pictures:\n\n{_table(bins)}" for name, bins in named.items()]
    return "\n\n".join(["## Calibration", fitted, *tables])


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
