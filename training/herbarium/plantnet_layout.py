"""Drawn plants in the layout of Pl@ntNet-300K: two JSON files, folders by split and species, and a long tail."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from training.herbarium.drawings import Drawing, PictureNumbers, SourceFiles
from training.herbarium.flora import Flora, PlantnetClass
from training.herbarium.observations import photographers
from training.herbarium.photo_styles import PLANTNET_STYLE, PhotoStyle

FOLDER: Final = "plantnet300k"
_METADATA_FILE: Final = f"{FOLDER}/plantnet300K_metadata.json"
_NAMES_FILE: Final = f"{FOLDER}/plantnet300K_species_id_2_name.json"
FEWEST_PICTURES: Final = 3  # of a class: one for each split
Part = Literal["train", "val", "test"]
_STREAM: Final = 25
_COUNTS_STREAM: Final = 26
_SHARE: Final = 0.1  # of a class's pictures, for validation and for test
_FIRST_ID: Final = 1355868
_MOST_IDS_SKIPPED: Final = 650
_FIRST_OBSERVATION: Final = 1_000_000_000
_MOST_OBSERVED: Final = 3  # maximum number of pictures of one observation
_LICENSES: Final = ("cc-by-sa", "cc-by-nc", "cc-by-nc-sa")
_ORGANS: Final = ("flower", "leaf", "fruit", "bark", "habit")
_ORGAN_SHARES: Final = (0.45, 0.25, 0.1, 0.05, 0.15)
_STYLES: Final[dict[str, PhotoStyle]] = {
    "flower": msgspec.structs.replace(PLANTNET_STYLE, close_ups=1.0),
    "habit": msgspec.structs.replace(PLANTNET_STYLE, close_ups=0.0, zoom=1.0),
}
# Class sizes fall with rank as (rank + 3 % of all)^-1.8: the largest fifth of the classes has about four fifths of the
# pictures, as in the published set.
_TAIL_EXPONENT: Final = 1.8
_TAIL_OFFSET: Final = 0.03


class PlantnetPicture(msgspec.Struct, frozen=True, gc=False):
    """One picture's entry in the metadata file."""

    species_id: str
    obs_id: str
    organ: str
    author: str
    license: str
    split: Part


class PlantnetSource(msgspec.Struct, frozen=True):
    """The data set, before it is written."""

    names: dict[str, PlantnetClass]
    """Species id -> class."""
    pictures: dict[str, PlantnetPicture]
    """Picture id -> metadata."""
    drawings: dict[str, Drawing]
    """Picture id -> picture to draw."""

    def path(self, picture_id: str) -> str:
        """Returns the file of a picture, relative to the data set's folder."""
        picture = self.pictures[picture_id]
        return f"images/{picture.split}/{picture.species_id}/{picture_id}.jpg"

    def files(self) -> SourceFiles:
        """Returns the data set's lists and pictures."""
        names = {species_id: plant.name for species_id, plant in self.names.items()}
        lists = {_METADATA_FILE: msgspec.json.encode(self.pictures), _NAMES_FILE: msgspec.json.encode(names)}
        return SourceFiles(lists, list(self.drawings.values()))


def plan_plantnet(
    flora: Flora, picture_numbers: PictureNumbers, *, pictures_per_class: int, size_px: int
) -> PlantnetSource:
    """Returns the data set: `pictures_per_class` on average, few in most classes and many in some."""
    rng = np.random.default_rng([flora.seed, _COUNTS_STREAM])
    steps = rng.integers(1, _MOST_IDS_SKIPPED, size=len(flora.plantnet))
    ids = [str(_FIRST_ID + int(number)) for number in np.cumsum(steps) - steps[0]]
    counts = rng.permutation(_long_tail(len(ids), pictures_per_class)).tolist()
    source = PlantnetSource(dict(zip(ids, flora.plantnet, strict=True)), {}, {})
    observations = count(_FIRST_OBSERVATION)
    for place, (species_id, plant) in enumerate(source.names.items()):
        own_rng = np.random.default_rng([flora.seed, _STREAM, place])
        for picture_id, picture in _pictures(species_id, counts[place], observations, own_rng).items():
            source.pictures[picture_id] = picture
            species = plant.species[len(source.pictures) % len(plant.species)]
            style = _STYLES.get(picture.organ, PLANTNET_STYLE)
            path = f"{FOLDER}/{source.path(picture_id)}"
            source.drawings[picture_id] = Drawing(
                path, species, picture_numbers.next_picture(species), style, size_px, size_px
            )
    return source


def _long_tail(num_classes: int, mean: int) -> npt.NDArray[np.int64]:
    """Returns class sizes, shape (num_classes,), that fall as a power of the rank and have about that mean."""
    weights = (np.arange(1, num_classes + 1) + _TAIL_OFFSET * num_classes) ** -_TAIL_EXPONENT
    extra = (mean - FEWEST_PICTURES) * num_classes
    return np.asarray(FEWEST_PICTURES + np.round(extra * weights / weights.sum()), dtype=np.int64)


def _pictures(
    species_id: str, size: int, observations: Iterator[int], rng: np.random.Generator
) -> dict[str, PlantnetPicture]:
    """Returns the pictures of one class; those of one observation are in one split."""
    held_out = max(1, round(_SHARE * size))
    split_sizes: dict[Part, int] = {"train": size - 2 * held_out, "val": held_out, "test": held_out}
    splits = [part for part, number in split_sizes.items() for _ in range(number)]
    observed = [name for number in split_sizes.values() for name in islice(_observation_ids(observations, rng), number)]
    organs = rng.choice(_ORGANS, size=size, p=_ORGAN_SHARES).tolist()
    licenses = [_LICENSES[place] for place in rng.integers(len(_LICENSES), size=size).tolist()]
    people = photographers(size, rng)
    return {
        rng.bytes(20).hex(): PlantnetPicture(species_id, *fields)
        for fields in zip(observed, organs, people, licenses, splits, strict=True)
    }


def _observation_ids(numbers: Iterator[int], rng: np.random.Generator) -> Iterator[str]:
    """Yields the observation of each picture; up to three in a row share one."""
    for number in numbers:
        for _ in range(int(rng.integers(1, _MOST_OBSERVED + 1))):
            yield str(number)
