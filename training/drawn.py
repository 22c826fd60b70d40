"""Drawn plants of invented species: pictures that a tiny network learns in seconds, without photographs.

A species has a color and a shape of petals, a number of them, and leaves of its own. A picture of it differs in place,
size, angle and background. It is a pure function of species and picture. `ensure_training_data` prepares a small
training set for the recipe `debug`; `write_class_folders` writes class folders, which `prepare.py folder` reads.
"""

import cmath
import colorsys
import math
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import msgspec
import numpy as np
import tyro
from PIL import Image, ImageDraw

from models.cores import cores
from models.errors import DataError, InputError
from training.dataset.classes import build_classes
from training.dataset.manifest import MANIFEST_FILE, SourceNote, write_manifest
from training.dataset.selection import manifest_columns
from training.dataset.sources.record import ImageInfo, LabeledPicture, PictureRecord, SourceClass, Split
from training.recipe import DataRecipe
from training.toml_file import Section

SIDE_PX: Final = 96
# Split of each picture of a species, by its number; every split has a picture of every species.
SPLIT_OF_PICTURE: Final[tuple[Split, ...]] = ("test", "validation", "validation", "calibration") + 8 * ("train",)
_SOURCE: Final = "drawn"
_PICTURES: Final = "pictures"
_KIN: Final = 4  # species of a genus, genera of a family
# Three make a genus. Each has three letters, so that no two genera are the same.
_SYLLABLES: Final = "bel cal dor fen gal hys jun kor lam mar nim pol quo ros sil tal ulm ver wis zin"
_NUM_GENERA: Final = len(_SYLLABLES.split()) ** 3
_EPITHETS: Final = (("alba", "White"), ("aurea", "Golden"), ("montana", "Mountain"), ("palustris", "Marsh"))


def species_name(species: int) -> SourceClass:
    """Returns the invented names of one species, in Latin and English style; no two species share one.

    `class_id`, which has both names, is called as a class folder.

    Raises:
        InputError: There are not so many species.
    """
    number, member = divmod(species, _KIN)
    if number >= _NUM_GENERA:
        raise InputError(
            "the species number is too high",
            value=species,
            limit=f"less than {_NUM_GENERA * _KIN}",
            remedy="draw fewer species",
        )
    genus = _genus(number)
    epithet, adjective = _EPITHETS[member]
    name = f"{genus} {epithet}"
    common_name = f"{adjective} {genus.lower()}wort"
    family = f"{_genus(number // _KIN * _KIN)}ceae"  # after its first genus
    return SourceClass(
        class_id=f"{common_name} ({name})", name=name, common_name=common_name, genus=genus, family=family
    )


def _genus(number: int) -> str:
    # Kin sound unlike. As 3571 has no factor in common with the number of genera, no name comes twice.
    syllables = _SYLLABLES.split()
    first, rest = divmod(3571 * number % _NUM_GENERA, len(syllables) ** 2)
    second, third = divmod(rest, len(syllables))
    return f"{syllables[first]}{syllables[second]}{syllables[third]}ia".capitalize()


def draw_plant(species: int, picture: int, size_px: int = SIDE_PX) -> Image.Image:
    """Draws one picture of a species: leaves, and a flower on top of them, before a blurred background.

    Args:
        species: Number of the species, from 0.
        picture: Number of the picture, from 0.
        size_px: Side of the square RGB picture.
    """
    # What all pictures of the species have in common. Widths are shares of the length, the last radius of the flower's.
    rng = np.random.default_rng([0, 1, species])
    hue = 0.8897387912781343 + 0.618034 * species  # golden steps keep any number of species apart on the color wheel
    petal_color = _rgb(hue, rng.uniform(0.55, 0.95), rng.uniform(0.75, 1.0))
    center_color = _rgb(rng.uniform(), 0.8, rng.uniform(0.3, 0.9))
    leaf_color = _rgb(rng.uniform(0.22, 0.42), rng.uniform(0.4, 0.9), rng.uniform(0.3, 0.65))
    num_petals = int(rng.integers(3, 13))
    petal_width = rng.uniform(0.2, 0.6)
    center_radius = rng.uniform(0.12, 0.35)
    num_leaves = int(rng.integers(2, 9))
    leaf_width = rng.uniform(0.15, 0.6)

    rng = np.random.default_rng([0, 2, species, picture])
    side = 2 * size_px  # scaled down at the end, so that edges are smooth
    blotches = rng.integers(40, 190, size=(6, 6, 3)).astype(np.uint8)
    image = Image.fromarray(blotches).resize((side, side), Image.Resampling.BICUBIC)
    canvas = ImageDraw.Draw(image)
    center = rng.uniform(0.38, 0.62, size=2) * side
    radius = rng.uniform(0.24, 0.34) * side
    angle = rng.uniform(0, 2 * math.pi)
    for leaf in range(num_leaves):
        turned = angle + 2 * math.pi * (leaf + rng.uniform(-0.2, 0.2)) / num_leaves
        canvas.polygon(_blade(center, 1.5 * radius, leaf_width, turned), fill=leaf_color)
    for petal in range(num_petals):
        turned = angle + 2 * math.pi * petal / num_petals
        outline = tuple(channel // 2 for channel in petal_color)
        canvas.polygon(_blade(center, radius, petal_width, turned), fill=petal_color, outline=outline)
    inner = center_radius * radius
    canvas.ellipse((*(center - inner), *(center + inner)), fill=center_color)
    return image.resize((size_px, size_px), Image.Resampling.BOX)


def _blade(center: np.ndarray, length: float, width: float, angle: float) -> list[tuple[float, float]]:
    """Returns the outline of a leaf or petal that begins at the center, pointed at both ends."""
    along = np.linspace(0, 1, 12)
    edge = along + 0.5j * width * np.sin(math.pi * along)
    outline = complex(*center) + length * cmath.rect(1, angle) * np.concatenate([edge, edge.conj()[::-1]])
    return list(zip(outline.real.tolist(), outline.imag.tolist(), strict=True))


def _rgb(hue: float, saturation: float, value: float) -> tuple[int, ...]:
    return tuple(round(255 * channel) for channel in colorsys.hsv_to_rgb(hue % 1, saturation, value))


class Drawn(Section, frozen=True, kw_only=True):
    """Draws plants of invented species into class folders, for rehearsals without photographs."""

    out: tyro.conf.Positional[Path]
    """Empty or new folder to write to."""
    species: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Number of species, each a folder."""
    first: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of the first species: those after the species of another folder are unknown to its network."""
    pictures: Annotated[int, msgspec.Meta(ge=1)] = 12
    """Pictures of each species."""
    size_px: Annotated[int, msgspec.Meta(ge=16)] = SIDE_PX
    """Side of the square pictures."""


def write_class_folders(command: Drawn) -> list[str]:
    """Draws a folder of JPEG pictures for each species, named `Common (Scientific)`; returns their paths below `out`.

    Raises:
        BotanifyError: The folder is not empty, or there are not so many species.
    """
    _require_empty(command.out, "name an empty or a new one")
    folders = {number: species_name(command.first + number).class_id for number in range(command.species)}
    for folder in folders.values():
        (command.out / folder).mkdir(parents=True)

    def draw(wanted: tuple[int, int]) -> str:
        number, picture = wanted
        path = f"{folders[number]}/{picture:02}.jpg"
        draw_plant(command.first + number, picture, command.size_px).save(command.out / path, quality=90)
        return path

    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(draw, product(folders, range(command.pictures))))


def _require_empty(folder: Path, remedy: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError("the folder holds other files", value=folder, limit="an empty or a new folder", remedy=remedy)


def ensure_training_data(data: DataRecipe) -> None:
    """Draws the data of a recipe with `drawn_species`, unless its data folder already holds prepared data.

    Each species has twelve pictures, 96 px square. A temporary folder is renamed when it is complete. The manifest has
    only relative paths, so the data is the same anywhere.

    Raises:
        DataError: The folder holds other files.
    """
    if data.drawn_species == 0 or (data.data / MANIFEST_FILE).is_file():
        return
    _require_empty(data.data, "name another one with --data, or pass --drawn-species 0")
    data.data.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(".part", f".{data.data.name}.", data.data.parent, ignore_cleanup_errors=True) as temporary:
        drawn = Path(temporary) / data.data.name
        _draw_training_data(drawn, data.drawn_species)
        drawn.replace(data.data)


def _draw_training_data(folder: Path, num_species: int) -> None:
    from training.dataset.audit.examine import examine_bytes  # loads scipy, for which no other training waits

    paths = write_class_folders(Drawn(out=folder / _PICTURES, species=num_species, pictures=len(SPLIT_OF_PICTURE)))
    plants = [species_name(number) for number in range(num_species)]
    classes = build_classes({_SOURCE: plants}, "within_sources")
    pictures = []
    for place, path in enumerate(paths):
        plant = plants[place // len(SPLIT_OF_PICTURE)]
        label = classes.labels[_SOURCE, plant.class_id]
        info = examine_bytes(path, (folder / _PICTURES / path).read_bytes())
        assert isinstance(info, ImageInfo)
        record = PictureRecord(path=path, plant=plant)
        pictures.append(LabeledPicture(source=_SOURCE, record=record, label=label, info=info))
    columns = manifest_columns(pictures, num_species * SPLIT_OF_PICTURE, paths)
    note = SourceNote(_PICTURES, "Drawn plants of invented species.")
    write_manifest(folder, columns, classes.taxonomy, {_SOURCE: note})
