"""What a network expects of its pictures: their sizes, and the normalization of its initial weights."""

from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import timm

from models.bundle import load_bundle
from models.errors import CheckpointError, RecipeError
from models.network import side_multiple
from models.preprocess import Channels, InputSpec
from training.recipe import NORMALIZATION, SMALLEST_PX, PictureRecipe, Recipe, check_stored_recipe


def input_spec(recipe: Recipe) -> InputSpec:
    """The preprocessing for evaluation; interpolation, mean and standard deviation are those of the initial weights.

    Raises:
        BundleError: The initial weights are a folder that is no bundle, or a damaged one.
    """
    interpolation, mean, std = _input_of(recipe.network.architecture, recipe.network.weights)
    return _sized(recipe.pictures, {"interpolation": interpolation, "mean": mean, "std": std})


def stored_input_spec(content: dict[str, Any], origin: str) -> InputSpec:
    """The preprocessing that a checkpoint was trained with; `content` is its recipe, and the error names `origin`.

    Raises:
        RecipeError: The recipe is not valid.
        CheckpointError: The normalization is not valid.
    """
    stored = content.get("pictures", {})
    normalization = {name: stored[name] for name in NORMALIZATION if name in stored}
    try:
        return _sized(check_stored_recipe(content, origin).pictures, normalization)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"the normalization in {origin} is not valid", value=error, remedy="use another checkpoint"
        ) from error


def with_input(plain: dict[str, Any], spec: InputSpec) -> dict[str, Any]:
    """Adds to a recipe as plain values what `stored_input_spec` reads: the normalization, which is no setting."""
    return plain | {"pictures": plain["pictures"] | {name: getattr(spec, name) for name in NORMALIZATION}}


def with_fitting_sizes(recipe: Recipe) -> tuple[Recipe, str]:
    """Rounds the sizes of a recipe to whole patches; the sentence says what was rounded, and is empty if nothing was.

    Raises:
        RecipeError: The network takes one size only, and the recipe has others.
    """
    architecture = recipe.network.architecture
    pictures = recipe.pictures
    multiple = side_multiple(architecture)
    if multiple == 1:
        sides = {pictures.picture_px, pictures.serve_px, *(side_px for _, side_px in pictures.progressive)}
        _require_its_size(architecture, sides, "pass --picture-px {side_px} --progressive --serve-px {side_px}")
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
    """Refuses a size of the service that is no multiple of the network's patches, or not its only one.

    Raises:
        RecipeError: The size does not fit.
    """
    multiple = side_multiple(architecture)
    if multiple == 1:
        _require_its_size(architecture, {side_px}, "leave out --serve-px")
    if side_px % multiple:
        raise RecipeError(
            f"{architecture} cuts pictures into patches, which do not fit",
            value=f"{side_px} px",
            limit=f"a multiple of {multiple} px",
            remedy=f"take {_rounded(side_px, multiple)} px",
        )


def _sized(pictures: PictureRecipe, normalization: dict[str, Any]) -> InputSpec:
    sizes = {"height": pictures.serve_px, "width": pictures.serve_px, "train_px": pictures.picture_px}
    return msgspec.convert(sizes | {"crop_fraction": pictures.crop_fraction} | normalization, InputSpec)


def _input_of(architecture: str, weights: str) -> tuple[Literal["bicubic", "bilinear"], Channels, Channels]:
    """Interpolation, mean and standard deviation that the initial weights were trained with."""
    # A folder of that name, such as one of pictures, is not meant.
    if weights not in {"imagenet", "none"} and Path(weights).is_dir():
        spec = load_bundle(Path(weights)).record.input
        return spec.interpolation, spec.mean, spec.std
    published = timm.get_pretrained_cfg(architecture)
    assert published is not None
    mean = cast(Channels, published.mean)
    std = cast(Channels, published.std)
    return "bilinear" if published.interpolation == "bilinear" else "bicubic", mean, std


def _require_its_size(architecture: str, sides: set[int], remedy: str) -> None:
    published = timm.get_pretrained_cfg(architecture)
    assert published is not None
    side_px = published.input_size[-1]
    if published.fixed_input_size and sides != {side_px}:
        raise RecipeError(
            f"{architecture} takes pictures of one size only",
            value=", ".join(f"{side} px" for side in sorted(sides)),
            limit=f"{side_px} px",
            remedy=remedy.format(side_px=side_px),
        )


def _rounded(side_px: int, multiple: int) -> int:
    """The nearest multiple that a recipe may have, at least 32 px."""
    least = -(-SMALLEST_PX // multiple)
    return max(round(side_px / multiple), least) * multiple


def _sizes(pictures: PictureRecipe) -> str:
    return ", ".join(str(side_px) for _, side_px in pictures.progressive) or str(pictures.picture_px)
