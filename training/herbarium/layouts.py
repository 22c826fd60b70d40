"""A flora as three data sets in the layouts of public ones, to rehearse what is done with them.

ROOT/inat2021/          train.json, val.json, {train,val}/<category>/<uuid>.jpg
ROOT/plantnet300k/      two JSON files, images/{train,val,test}/<species id>/<hash>.jpg
ROOT/house_plants/      <Common (Scientific)>/<number>.{jpg,jpeg,png,webp}
ROOT/outside/           <Common (Scientific)>/<number>.jpg, of species that stand in no list
ROOT/taxon.tsv          names, families and synonyms
ROOT/data_herbarium.toml   the collection: what to prepare, by which rules
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError
from training.herbarium import house_layout, inaturalist_layout, plantnet_layout
from training.herbarium.collection_file import COLLECTION_FILE, collection_file
from training.herbarium.drawings import Drawing, Layout, PictureNumbers, draw_files
from training.herbarium.faults import PlantedFault, damage_files, known_oddities, split_observation
from training.herbarium.flora import FULL_WIDTH, FloraSize, make_flora
from training.herbarium.folder import refuse_occupied
from training.herbarium.picture import SMALLEST_PX
from training.herbarium.taxon_file import TAXON_FILE, taxon_file

FEWEST_PICTURES: Final = plantnet_layout.FEWEST_PICTURES + 1


class WrittenLayouts(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    root: Path
    size: FloraSize
    collection: Path
    """The TOML file that names the data sets."""
    num_pictures: dict[str, int]
    """Data set -> pictures, without planted files."""
    planted: tuple[PlantedFault, ...]
    """What a preparation has to notice."""


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
        root: An empty folder, or one that does not exist yet; it is left empty if something fails.
        size: How many classes each data set has.
        pictures_per_class: In each class, in Pl@ntNet on average.
        seed: Another seed is another flora.
        size_px: Shorter side of the pictures.
        workers: Processes that draw.
        pictures: Whether to draw; if not, the lists are written alone, and a folder without a list has empty files.
        faults: Whether to plant broken files, copies, and pictures that leak from test to training.

    Raises:
        InputError: `root` is a file or has something in it.
        DataError: A number cannot be used, or faults are asked for without pictures.
    """
    _check(pictures_per_class, size_px, workers)
    if faults and not pictures:
        raise DataError("faults are planted in pictures, and there are none", remedy="draw pictures or plant no faults")
    refuse_occupied(root)
    flora, album = make_flora(size, seed), PictureNumbers()
    options = {"pictures_per_class": pictures_per_class, "size_px": size_px}
    inaturalist = inaturalist_layout.plan_inaturalist(flora, album, **options)
    plantnet = plantnet_layout.plan_plantnet(flora, album, **options)
    house = house_layout.plan_house_plants(flora, album, **options)
    outside = house_layout.plan_outside(flora, album, **options)
    planted = known_oddities(flora, plantnet)
    with _emptied_on_failure(root):
        planted += split_observation(plantnet) if faults else []
        lists = {
            TAXON_FILE: taxon_file(flora),
            COLLECTION_FILE: collection_file(flora, size_px=size_px),
        }
        drawings = _write_lists(root, [inaturalist, plantnet.layout(), house, outside, Layout(lists, [])])
        if pictures:
            draw_files(root, drawings, seed=seed, workers=workers)
            planted += damage_files(root, flora, inaturalist, plantnet, house) if faults else []
        else:
            _touch(root, [*house.drawings, *outside.drawings])
    return WrittenLayouts(
        root=root,
        size=size,
        collection=root / COLLECTION_FILE,
        num_pictures=dict(Counter(drawing.path.partition("/")[0] for drawing in drawings)),
        planted=tuple(planted),
    )


def _check(pictures_per_class: int, size_px: int, workers: int) -> None:
    least = {"pictures_per_class": FEWEST_PICTURES, "size_px": SMALLEST_PX, "workers": 1}
    given = {"pictures_per_class": pictures_per_class, "size_px": size_px, "workers": workers}
    for name, value in given.items():
        if value < least[name]:
            raise DataError(f"{name.replace('_', ' ')} is too small", value=value, limit=f"{least[name]} or more")


@contextmanager
def _emptied_on_failure(root: Path) -> Iterator[None]:
    """Makes the folder, and takes away again all that was written if not everything could be."""
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


def _write_lists(root: Path, layouts: Sequence[Layout]) -> list[Drawing]:
    """Writes all files but the pictures, which are returned."""
    for layout in layouts:
        for path, content in layout.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
    return [drawing for layout in layouts for drawing in layout.drawings]


def _touch(root: Path, drawings: Sequence[Drawing]) -> None:
    for drawing in drawings:
        (root / drawing.path).parent.mkdir(parents=True, exist_ok=True)
        (root / drawing.path).touch()
