"""The data of `debug.toml`, drawn once for all tests of a session: a picture takes five milliseconds."""

from pathlib import Path

import msgspec

from training.drawn import ensure_training_data
from training.recipe import read_recipe

DEBUG = read_recipe(Path("debug"))


def debug_data(tmp_path_factory):
    """The folder that the tests of this session share, never to be written to."""
    return draw_debug_data(tmp_path_factory.getbasetemp())


def draw_debug_data(base):
    """The folder, below a base; drawn unless it is there."""
    folder = base / "debug-data"
    ensure_training_data(msgspec.structs.replace(DEBUG.data, data=folder))
    return folder
