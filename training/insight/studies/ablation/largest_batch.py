"""Where a card's memory ends."""

from collections.abc import Callable
from typing import Final

import msgspec

from models.errors import RecipeError

_MOST_PICTURES: Final = 512  # a step; a card of 8 GB holds a tenth of them at 380 px


class BatchLimit(msgspec.Struct, frozen=True):
    """Where a card's memory ends; both sizes were tried."""

    fits: int
    """Largest batch that ran; 0: none did."""
    fails: int
    """Smallest batch that did not."""


class HoldsAnyBatch(RecipeError):
    """The card that is imitated is too large for the search."""


def largest_batch(fits: Callable[[int], bool], first: int = 4, step: int = 2, most: int = _MOST_PICTURES) -> BatchLimit:
    """Finds where memory ends, by doubling and then halving the gap; every size it names was tried.

    Args:
        fits: Whether a step of so many pictures runs.
        first: The smallest size tried.
        step: The largest gap between the two sizes at the end.
        most: Where doubling ends; memory that holds more is none that is looked for.

    Raises:
        HoldsAnyBatch: Even `most` fits.
    """
    size, fitting = first, 0
    while fits(size):
        if size >= most:
            raise HoldsAnyBatch(
                "the imitated card holds any batch", value=f"{size} pictures a step fit", remedy="lower --memory-gb"
            )
        size, fitting = 2 * size, size
    failing = size
    while fitting and failing - fitting > step:
        size = (fitting + failing) // 2
        fitting, failing = (size, failing) if fits(size) else (fitting, size)
    return BatchLimit(fitting, failing)
