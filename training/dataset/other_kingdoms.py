"""Command: lists pictures of an iNaturalist 2021 folder that show no plant, for `--negatives`.

The list has a row for each picture: its path relative to the list, its split, its kingdom and its name. Pictures of the
training file are there to fit on (split `fit`), those of `val.json` to judge with (split `test`).
"""

import csv
import io
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import tyro

from models.errors import DataError
from training.atomic_file import replaced
from training.dataset.sources.json_layouts import OtherPicture, read_other_kingdoms
from training.toml_file import Section, check_section, section_to_plain

_COLUMNS: Final = ("path", "split", "kingdom", "name")


class Negatives(Section, frozen=True, kw_only=True):
    """Lists animals, fungi and other pictures of an iNaturalist 2021 folder, for the flag --negatives."""

    pictures: tyro.conf.Positional[Path]
    """The folder with train.json or train_mini.json, and val.json."""
    out: Path
    """CSV list to write."""
    most: Annotated[int, msgspec.Meta(ge=1)] = 5000
    """Pictures of each split at most. They are of all species alike: none has two before each has one."""
    seed: int = 0
    """Seed of the random choice."""


def write_negatives(command: Negatives) -> Counter[str]:
    """Writes the list, and returns how many pictures of each split it has.

    Raises:
        DataError: The folder holds no iNaturalist data set, a file of it is damaged, or it shows nothing but plants.
        RecipeError: A flag is out of range.
    """
    command = check_section(section_to_plain(command), Negatives, origin="of the flags")
    listed = [
        (split, each)
        for split, pictures in read_other_kingdoms(command.pictures).items()
        for each in choose_alike(pictures, command.most, command.seed)
    ]
    if not listed:
        raise DataError("the data set shows nothing but plants", value=command.pictures, remedy="give another folder")
    root = os.path.relpath(command.pictures, command.out.parent)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    writer.writerows((f"{root}/{each.path}", split, each.kingdom, each.name) for split, each in listed)
    command.out.parent.mkdir(parents=True, exist_ok=True)
    with replaced(command.out) as stream:
        stream.write(text.getvalue().encode())
    return Counter(split for split, _ in listed)


def choose_alike(pictures: list[OtherPicture], most: int, seed: int) -> list[OtherPicture]:
    """Chooses pictures at random, of all names alike; the order stays that of the file."""
    num_before: Counter[str] = Counter()
    turns = []
    for place in np.random.default_rng(seed).permutation(len(pictures)).tolist():
        name = pictures[place].name
        turns.append((num_before[name], place))
        num_before[name] += 1
    turns.sort(key=lambda turn: turn[0])
    return [pictures[place] for place in sorted(place for _, place in turns[:most])]
