"""The sizes of the pictures: which knob decides on them, and what they are in each epoch."""

from collections.abc import Sequence
from typing import Final

import msgspec

from training.recipe import PictureRecipe, Recipe

_SMALLEST_PX: Final = 32  # as in the recipe
_LARGEST_PX: Final = 2048  # likewise


def side_at_epoch(pictures: PictureRecipe, epoch: int) -> int:
    """Side of the training pictures in an epoch, px: that of the last step that has begun, else `picture_px`."""
    begun = [side_px for first_epoch, side_px in pictures.progressive if first_epoch <= epoch]
    return begun[-1] if begun else pictures.picture_px


def sides_of_epochs(recipe: Recipe) -> list[int]:
    """Side of the training pictures in each epoch of a run, px."""
    return [side_at_epoch(recipe.pictures, epoch) for epoch in range(recipe.schedule.epochs)]


def sizes_by_flags(pictures: PictureRecipe, picture_px_of_file: int, given: Sequence[str]) -> PictureRecipe:
    """Lets the one flag that is given decide on all sizes, `picture_px`, `progressive` and `serve_px`.

    `picture_px` scales all steps, and the last step of `progressive` becomes `picture_px`. If both are given they stay
    as they are, and must agree. `serve_px` is scaled with `picture_px`, since the best size in the service is a little
    above that of the training (Touvron et al. 2019).

    Args:
        pictures: The recipe with the flags.
        picture_px_of_file: `picture_px` of the recipe without the flags.
        given: Names of the knobs that are flags, which stay as they are.
    """
    sized = _training_sizes(pictures, picture_px_of_file, given)
    if "serve_px" in given:
        return sized
    serve_px = round(sized.serve_px * sized.picture_px / picture_px_of_file)
    return msgspec.structs.replace(sized, serve_px=min(max(serve_px, _SMALLEST_PX), _LARGEST_PX))


def _training_sizes(pictures: PictureRecipe, picture_px_of_file: int, given: Sequence[str]) -> PictureRecipe:
    if not pictures.progressive or {"picture_px", "progressive"} <= set(given):
        return pictures
    if "progressive" in given:
        return msgspec.structs.replace(pictures, picture_px=pictures.progressive[-1][1])
    scale = pictures.picture_px / picture_px_of_file
    steps = tuple((epoch, max(round(side_px * scale), _SMALLEST_PX)) for epoch, side_px in pictures.progressive)
    return msgspec.structs.replace(pictures, progressive=steps)
