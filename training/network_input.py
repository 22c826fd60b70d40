"""What a network expects of its pictures: their sizes, and the normalization of its published weights."""

import msgspec
import timm

from models.errors import RecipeError
from models.network import side_multiple
from training.recipe import PictureRecipe, Recipe


def with_network_input(recipe: Recipe) -> Recipe:
    """Fills in what the recipe leaves to the network: interpolation, mean and standard deviation.

    They are those that timm records for the published weights of the architecture.
    """
    published, pictures = timm.get_pretrained_cfg(recipe.network.architecture), recipe.pictures
    assert published is not None
    filled = msgspec.structs.replace(
        pictures,
        interpolation=pictures.interpolation or ("bilinear" if published.interpolation == "bilinear" else "bicubic"),
        mean=pictures.mean or published.mean,
        std=pictures.std or published.std,
    )
    return msgspec.structs.replace(recipe, pictures=filled)


def with_fitting_sizes(recipe: Recipe) -> tuple[Recipe, str]:
    """Rounds the sizes of a recipe to whole patches, if the network cuts pictures into patches.

    Returns:
        The recipe, and a sentence about what was rounded; empty if nothing was.

    Raises:
        RecipeError: The network takes one size only, and the recipe has others.
    """
    architecture, pictures = recipe.network.architecture, recipe.pictures
    multiple = side_multiple(architecture)
    if multiple == 1:
        _require_its_size(architecture, pictures)
        return recipe, ""
    fitting = msgspec.structs.replace(
        pictures,
        picture_px=_rounded(pictures.picture_px, multiple),
        serve_px=_rounded(pictures.serve_px, multiple),
        progressive=tuple((epoch, _rounded(side_px, multiple)) for epoch, side_px in pictures.progressive),
    )
    if fitting == pictures:
        return recipe, ""
    note = (
        f"{architecture} cuts pictures into patches of {multiple} px: training pictures have {_sizes(fitting)} px "
        f"in place of {_sizes(pictures)} px, and those of the service {fitting.serve_px} px in place of "
        f"{pictures.serve_px} px"
    )
    return msgspec.structs.replace(recipe, pictures=fitting), note


def require_side(architecture: str, side_px: int) -> None:
    """Refuses a size of pictures that is no multiple of the network's patches.

    Raises:
        RecipeError: The size does not fit.
    """
    multiple = side_multiple(architecture)
    if side_px % multiple:
        raise RecipeError(
            f"{architecture} cuts pictures into patches, which do not fit",
            value=f"{side_px} px",
            limit=f"a multiple of {multiple} px",
            remedy=f"take {_rounded(side_px, multiple)} px",
        )


def _require_its_size(architecture: str, pictures: PictureRecipe) -> None:
    published = timm.get_pretrained_cfg(architecture)
    assert published is not None
    sides = {pictures.picture_px, pictures.serve_px, *(side_px for _, side_px in pictures.progressive)}
    side_px = published.input_size[-1]
    if published.fixed_input_size and sides != {side_px}:
        raise RecipeError(
            f"{architecture} takes pictures of one size only",
            value=", ".join(f"{side} px" for side in sorted(sides)),
            limit=f"{side_px} px",
            remedy=f"pass --picture-px {side_px} --progressive --serve-px {side_px}",
        )


def _rounded(side_px: int, multiple: int) -> int:
    """The nearest multiple that a recipe may have, at least 32 px."""
    least = -(-32 // multiple)
    return max(round(side_px / multiple), least) * multiple


def _sizes(pictures: PictureRecipe) -> str:
    return ", ".join(str(side_px) for _, side_px in pictures.progressive) or str(pictures.picture_px)
