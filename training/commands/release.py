"""The flags of release.py."""

from pathlib import Path
from typing import Final

import tyro

from models.bundle_record import Precision
from training.dataset.sources.record import Split
from training.recipe import Count, WholeNumber
from training.toml_file import Section

FEW_SHOT: Final = 20
"""Fewer training pictures than these are few (Liu et al. 2019, "Large-Scale Long-Tailed Recognition in an Open
World")."""


class Measuring(Section, frozen=True, kw_only=True):
    """Options of the commands that compare."""

    shards: str = ""
    """Folder or URL (s3://, gs://) with the shards of packed data; default: the data folder."""
    split: Split = "test"
    """Split with the frozen set."""
    trained_on: tuple[Path, ...] = ()
    """Folders of prepared data that the bundles were trained on, unless that is DATA itself. They show that no picture
    of the set was trained on, and give the number of training pictures of each taxon."""
    negatives: tuple[Path, ...] = ()
    """Folders of pictures that show no plant, or CSV lists with a column `path`; of a list with a column `split`, the
    rows `test`. Measures how many of them are named as plants."""
    precision: Precision = "fp32"
    """Networks to compare; both bundles must have it."""
    few_shot: Count = FEW_SHOT
    """Taxa with fewer training pictures are listed as few-shot taxa."""
    speed_pairs: WholeNumber = 30
    """Runs of each network for the speed, in turns on one thread; 0 measures none."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the main process."""


class Compare(Measuring, frozen=True, kw_only=True):
    """Compares two bundles on the pictures of the taxa that both know."""

    old: tyro.conf.Positional[Path]
    """Bundle to compare with."""
    new: tyro.conf.Positional[Path]
    """Bundle to judge."""
    data: Path
    """Folder written by training/prepare.py, with pictures that neither bundle was trained on."""
    out: Path | None = None
    """Folder for comparison.html and comparison.json."""


class Promote(Measuring, frozen=True, kw_only=True):
    """Makes a bundle the current one of a registry, unless it is worse or cannot be judged.

    It is compared with the current bundle on the taxa that both know, and refused if the 95 % interval of the loss in
    micro or macro top-1 reaches 0.5 points, or if either bundle was trained on the pictures or this is unknown.
    """

    bundle: tyro.conf.Positional[Path]
    """Bundle to promote; it is copied into the registry."""
    registry: tyro.conf.Positional[Path]
    """Folder of the registry; the first promotion creates it, without a comparison."""
    data: Path | None = None
    """Folder written by training/prepare.py, with pictures that neither bundle was trained on."""
    accept_uncertain: str = ""
    """Why you promote the bundle although too few pictures exclude a loss, or it is not known what a bundle was trained
    on; the history keeps it. A loss that is proved (its interval lies above 0) stays refused."""


class Rollback(Section, frozen=True, kw_only=True):
    """Goes back to the bundle that was current before the last promotion; again, to the one before that."""

    registry: tyro.conf.Positional[Path]
    """Folder of the registry."""


class List(Section, frozen=True, kw_only=True):
    """Lists the bundles of a registry, and the changes of its pointer."""

    registry: tyro.conf.Positional[Path]
    """Folder of the registry."""


Command = Compare | Promote | Rollback | List
