"""Trains a network by a recipe.

python training/train.py RECIPE [--flags]     RECIPE is a TOML file, or the name of one in training/recipes
"""

from pathlib import Path

import msgspec
import tyro

from models.errors import RecipeError
from training.recipe import Recipe, check_recipe, read_recipe, recipe_to_plain, sizes_by_flags


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Trains a network by a recipe. Each setting of the recipe is a flag, too."""

    recipe_file: tyro.conf.Positional[Path]
    """A TOML file, or the name of one in training/recipes."""
    recipe: Recipe
    resume: bool = False
    """Continue from the last checkpoint in the run's folder."""
    auto_resume: bool = False
    """Continue if there is a checkpoint, otherwise start; for schedulers, which start the same command again."""
    restart: bool = False
    """Start over in a folder that holds a run, and overwrite that run."""
    max_steps: int | None = None
    """Stop after this many optimizer steps, with a checkpoint."""
    max_seconds: float | None = None
    """Stop when the run has trained for this many seconds, with a validation and a checkpoint."""
    show_batch: Path | None = None
    """Draw one augmented batch with its labels to this PNG file, and stop."""
    tune: bool = False
    """Measure batch sizes, memory layout, precision and compilation on this machine, propose flags, and stop."""


def parse(arguments: list[str]) -> Train:
    """Reads the recipe, which comes first, and applies the flags to it.

    Raises:
        RecipeError: The recipe or a flag is wrong.
    """
    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if named is None and not {"-h", "--help"} & set(arguments):
        raise RecipeError("no recipe is given", remedy="give one first, as in: train.py b4_5337 --data DATA")
    path = Path(named or "b4_5337")
    command = tyro.cli(
        Train,
        description=__doc__,
        args=arguments,
        default=Train(recipe_file=path, recipe=read_recipe(path)),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if command.max_steps is not None and command.max_steps < 1:
        raise RecipeError("too few steps", value=f"--max-steps {command.max_steps}", limit="at least 1")
    if command.max_seconds is not None and not command.max_seconds > 0:
        raise RecipeError("too little time", value=f"--max-seconds {command.max_seconds}", limit="more than 0")
    return msgspec.structs.replace(command, recipe=_resolved(command.recipe, read_recipe(path), arguments))


def _resolved(recipe: Recipe, of_file: Recipe, arguments: list[str]) -> Recipe:
    """Checks a recipe with its flags, and gives it one size of the training pictures."""
    given = [word.partition("=")[0].lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")]
    pictures = sizes_by_flags(recipe.pictures, of_file.pictures.picture_px, given)
    return check_recipe(recipe_to_plain(msgspec.structs.replace(recipe, pictures=pictures)), origin="with these flags")
