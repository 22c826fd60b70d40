"""Lists pictures that are no class of the network: negatives, and unknown plants. Training and export read them alike.

They are given as folders of pictures, or as CSV lists.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from PIL import Image

from models.errors import DataError
from models.preprocess import PIXEL_LIMITS, InputSpec
from models.skipped import NO_PICTURES, walk
from models.text_table import TextTable
from training.dataset.sources.table import on_disk
from training.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from training.loading.data import Features

NOT_A_PLANT: Final = -1
"""The label of a picture without a plant, which has no output. In a batch these pictures come last."""
UNKNOWN_PLANT: Final = -2
"""The label of a plant that is no output of the network. These come before the rest."""
_KINDS: Final = {NOT_A_PLANT: ("without a plant", "--negatives"), UNKNOWN_PLANT: ("of an unknown plant", "--unknown")}
FIT_SPLITS: Final = ("fit", "train")
"""Rows of a list that may be trained on and fitted on; the other rows judge the result."""
LIST: Final = "labels.csv"
"""The list that a folder may have."""


class Negatives(msgspec.Struct, frozen=True):
    """Pictures that are no class of the network."""

    label: int = NOT_A_PLANT
    paths: tuple[Path, ...] = ()
    """In the order of the folders, then sorted, or as the list has them."""
    num_broken: int = 0
    """Files that were left out, since they are missing or have no readable header."""
    sha256: str = ""
    """Hash of the paths below their folders, so that a folder may be moved; empty without folders."""
    scientific_names: tuple[str, ...] = ()
    """Name of each picture, from the column of a list; else empty."""
    sources: tuple[int, ...] = ()
    """Number of the folder or list that each picture comes from."""

    @property
    def description(self) -> str:
        """How many there are, in words."""
        broken = f" ({self.num_broken:,} files cannot be read)" if self.num_broken else ""
        return f"{len(self.paths):,} pictures {_KINDS[self.label][0]}{broken}"

    def of_batch(self, share: float, batch_size: int) -> int:
        """How many of them are added to a batch of plants: a share of its size, but at least one."""
        return max(round(share * batch_size), 1) if self.paths else 0


def list_negatives(
    folders: tuple[Path, ...], splits: tuple[str, ...] = FIT_SPLITS, label: int = NOT_A_PLANT
) -> Negatives:
    """Lists the pictures of folders, which show no plant or, by their label, unknown plants.

    Only headers are read. Whether a picture decodes is seen when it is loaded. A picture that is listed twice counts
    once: otherwise the fit would know a picture that judges it.

    A folder is read with all folders below it, unless it has a file `labels.csv`. A CSV list has the column `path`
    (absolute, or relative to the list); if it has the column `split`, the rows of `splits` are taken. Its column
    `scientific_name` says which plant is unknown.

    Raises:
        DataError: A folder or list is missing, cannot be read, or has no picture.
    """
    found = dict[Path, tuple[Path, str, int]]()
    digest = hashlib.sha256()
    num_broken = 0
    what, flag = _KINDS[label]
    for source, given in enumerate(folders):
        if not given.exists():
            raise DataError(f"no such folder of pictures {what}", value=given, remedy=f"correct {flag}")
        listed = listed_pictures(given, splits)
        root = given if given.is_dir() else given.parent
        readable = {name: plant for name, plant in listed.items() if _has_header(root / name)}
        if not readable:
            raise DataError(
                f"no picture {what} can be read",
                value=given,
                limit=f"a folder of pictures, or a list with rows of split {' or '.join(splits)}",
                remedy=f"correct {flag}",
            )
        num_broken += len(listed) - len(readable)
        for name, plant in readable.items():
            found.setdefault((root / name).resolve(), (root / name, plant, source))
        digest.update("\n".join([*readable, ""]).encode(errors="surrogateescape"))
    paths, plants, sources = zip(*found.values(), strict=True) if found else ((), (), ())
    return Negatives(label, paths, num_broken, digest.hexdigest() if folders else "", plants, sources)


class RunInput(msgspec.Struct, frozen=True):
    """The recipe of a training run, and what follows from it once."""

    recipe: Recipe
    spec: InputSpec
    """The preprocessing for evaluation."""
    negatives: Negatives
    """Pictures that show no plant."""
    unknown: Negatives
    """Unknown plants."""
    features: "Features | None" = None
    """What takes the place of pictures where the network is frozen."""

    @property
    def others(self) -> tuple[Negatives, Negatives]:
        """The pictures of no class."""
        return self.negatives, self.unknown

    @classmethod
    def of(cls, recipe: Recipe) -> "RunInput":
        """Reads the header of each listed picture, and the initial weights if they are a bundle.

        Raises:
            BundleError: The initial weights are a folder that is no bundle, or a damaged one.
            DataError: A folder or list of pictures is missing, cannot be read, or has no picture.
        """
        from training.network_input import input_spec  # loads timm, for which --help does not wait

        listed = recipe.negatives
        negatives = list_negatives(listed.negatives)
        unknown = list_negatives(listed.unknown, label=UNKNOWN_PLANT)
        return cls(recipe, input_spec(recipe), negatives, unknown)


def num_plants(labels: "Tensor") -> int:
    """How many pictures of a batch have a class; waits for the device of the labels, so give those of the loader."""
    return int((labels >= 0).sum())


def num_unknown(labels: "Tensor") -> int:
    """How many pictures of a batch are plants of no class; waits as `num_plants` does."""
    return int((labels == UNKNOWN_PLANT).sum())


def table_of(given: Path) -> Path | None:
    """The CSV list that is given, or that a folder has; None for a folder without one."""
    table = given / LIST if given.is_dir() else given
    return table if table.is_file() else None


def listed_pictures(given: Path, splits: tuple[str, ...] | None = None) -> dict[str, str]:
    """Paths of the pictures, as they are below the folder or in the list, each with its scientific name or nothing.

    Of a list with the column `split` only the rows of `splits`, or all.
    """
    table = table_of(given)
    if table is not None:
        return dict(_listed(table, splits))
    found = []
    for folder, _, files in walk(given):
        paths = [Path(folder, name) for name in files]
        found += [path.relative_to(given).as_posix() for path in paths if path.suffix.lower() not in NO_PICTURES]
    return dict.fromkeys(sorted(found), "")


def _listed(path: Path, splits: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    table = TextTable(path, ("path",), {"path": (), "split": (), "scientific_name": ()})
    for _, row in table.rows():
        if row["path"] and (splits is None or "split" not in table.columns or row["split"] in splits):
            yield on_disk(path.parent, row["path"]), row["scientific_name"]


def _has_header(path: Path) -> bool:
    try:
        with Image.open(path, formats=list(PIXEL_LIMITS)):
            return True
    except Exception:  # Pillow's plugins raise OSError, SyntaxError, ValueError and others
        return False
