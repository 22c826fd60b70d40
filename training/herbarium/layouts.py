"""Writes a flora as three data sets in the layouts of public ones.

ROOT/inat2021/          train.json, val.json, {train,val}/<category>/<uuid>.jpg
ROOT/plantnet300k/      two JSON files, images/{train,val,test}/<species id>/<hash>.jpg
ROOT/house_plants/      <Common (Scientific)>/<number>.{jpg,jpeg,png,webp}
ROOT/outside/           <Common (Scientific)>/<number>.jpg, of species in no data set
ROOT/taxon.tsv          names, families and synonyms
ROOT/data_herbarium.toml   the collection, for training/prepare.py sources
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError, InputError
from training.herbarium import house_layout, inaturalist_layout, plantnet_layout
from training.herbarium.collection_file import COLLECTION_FILE, collection_file
from training.herbarium.drawings import Drawing, PictureNumbers, SourceFiles, draw_files
from training.herbarium.faults import PlantedFault, damage_files, list_faults, split_observation
from training.herbarium.flora import FULL_WIDTH, FloraSize, make_flora
from training.herbarium.picture import SMALLEST_PX
from training.herbarium.taxon_file import TAXON_FILE, taxon_file

FEWEST_PICTURES: Final = plantnet_layout.FEWEST_PICTURES + 1


class WrittenLayouts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `write_layouts`."""

    root: Path
    size: FloraSize
    collection: Path
    """The collection's TOML file."""
    num_pictures: dict[str, int]
    """Data set -> number of pictures, without those of added faults."""
    faults: tuple[PlantedFault, ...]
    """The faults that a preparation must report."""


def write_layouts(
    root: Path,
    size: FloraSize = FULL_WIDTH,
    *,
    pictures_per_class: int = FEWEST_PICTURES,
    seed: int = 0,
    size_px: int = 64,
    workers: int = 1,
    pictures: bool = True,
    faults: bool = False,
) -> WrittenLayouts:
    """Writes a flora in the layouts of iNaturalist 2021, Pl@ntNet-300K and an image folder, and draws its pictures.

    Args:
        root: An empty or new folder; emptied again if writing fails.
        size: Number of classes in each data set.
        pictures_per_class: Pictures per class; the average for Pl@ntNet.
        seed: Seed of the flora.
        size_px: Shorter side of the pictures.
        workers: Processes that draw.
        pictures: Whether to draw. If not, only lists are written, and empty files for data sets without a list.
        faults: Whether to add broken files, copies, and pictures that leak from test to training.

    Raises:
        InputError: `root` is a file or a folder that is not empty.
        DataError: A number is out of range, or `faults` is set without `pictures`.
    """
    _check(pictures_per_class, size_px, workers)
    if faults and not pictures:
        raise DataError("faults need pictures", remedy="draw pictures, or add no faults")
    _refuse_occupied(root)
    flora, numbers = make_flora(size, seed), PictureNumbers()
    options = {"pictures_per_class": pictures_per_class, "size_px": size_px}
    inaturalist = inaturalist_layout.plan_inaturalist(flora, numbers, **options)
    plantnet = plantnet_layout.plan_plantnet(flora, numbers, **options)
    house = house_layout.plan_house_plants(flora, numbers, **options)
    outside = house_layout.plan_outside(flora, numbers, **options)
    found_faults = list_faults(flora, plantnet)
    with _emptied_on_failure(root):
        found_faults += split_observation(plantnet) if faults else []
        lists = {
            TAXON_FILE: taxon_file(flora),
            COLLECTION_FILE: collection_file(flora, size_px=size_px),
        }
        drawings = _write_lists(root, [inaturalist, plantnet.files(), house, outside, SourceFiles(lists, [])])
        if pictures:
            draw_files(root, drawings, seed=seed, workers=workers)
            found_faults += damage_files(root, flora, inaturalist, plantnet, house) if faults else []
        else:
            _touch(root, [*house.drawings, *outside.drawings])
    return WrittenLayouts(
        root=root,
        size=size,
        collection=root / COLLECTION_FILE,
        num_pictures=dict(Counter(drawing.path.partition("/")[0] for drawing in drawings)),
        faults=tuple(found_faults),
    )


def _check(pictures_per_class: int, size_px: int, workers: int) -> None:
    least = {"pictures_per_class": FEWEST_PICTURES, "size_px": SMALLEST_PX, "workers": 1}
    given = {"pictures_per_class": pictures_per_class, "size_px": size_px, "workers": workers}
    for name, value in given.items():
        if value < least[name]:
            raise DataError(f"{name.replace('_', ' ')} is too small", value=value, limit=f"{least[name]} or more")


def _refuse_occupied(root: Path) -> None:
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            "the folder for the drawn pictures is not empty",
            value=str(root),
            limit="an empty or a new folder",
            remedy="choose another folder or empty this one",
        )


@contextmanager
def _emptied_on_failure(root: Path) -> Iterator[None]:
    """Creates the folder, and removes everything written to it if the block fails."""
    existed = root.exists()
    root.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            root.rmdir()
        raise


def _write_lists(root: Path, layouts: Sequence[SourceFiles]) -> list[Drawing]:
    """Writes the lists; returns the pictures to draw."""
    for layout in layouts:
        for path, content in layout.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
    return [drawing for layout in layouts for drawing in layout.drawings]


def _touch(root: Path, drawings: Sequence[Drawing]) -> None:
    for drawing in drawings:
        (root / drawing.path).parent.mkdir(parents=True, exist_ok=True)
        (root / drawing.path).touch()
