"""Reads the published layouts that list their pictures in JSON: iNaturalist 2021 and Pl@ntNet-300K.

iNaturalist has COCO-style `train.json` and `val.json`. Only kingdom Plantae becomes training data; pictures of other
kingdoms can be listed. The published `val` becomes the test split, because the published test set has no labels.

Pl@ntNet has a file of pictures, one of species names, and a folder for each split. Version 1.0 differs from 1.1 in the
file of names, which have no authors, and in the folders of the splits. Both are recognized by what lies in the folder,
so that the pictures of one can be used with the lists of the other.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
import numpy as np

from models.errors import DataError
from training.dataset.archive import archives_of, has_list, read_list
from training.dataset.sources.record import (
    SPLIT_NAMES,
    LeftOut,
    Other,
    PictureRecord,
    SourceClass,
    SourceContents,
    Split,
    day_of,
    place_of,
)

METADATA_FILE: Final = "plantnet300K_metadata.json"
NAMES_FILE: Final = "plantnet300K_species_id_2_name.json"
NAMES_FILE_1_0: Final = "plantnet300K_species_names.json"
_PLANTS: Final = "Plantae"
_TRAIN_FILES: Final = ("train.json", "train_mini.json")  # the first that exists is read
_TEST_FILE: Final = "val.json"
_REMEDY: Final = "correct it, or download it again"

Kind = TypeVar("Kind")
Key = TypeVar("Key")


class _Category(msgspec.Struct, frozen=True):
    id: int
    name: Annotated[str, msgspec.Meta(min_length=1)]
    kingdom: str
    common_name: str | None = None
    order: str | None = None
    family: str | None = None
    genus: str | None = None
    image_dir_name: str = ""


class _Annotation(msgspec.Struct, frozen=True, gc=False):
    image_id: int
    category_id: int


class _License(msgspec.Struct, frozen=True):
    id: int
    name: str | None = None
    url: str | None = None


class _Image(msgspec.Struct, frozen=True, gc=False):
    id: int
    file_name: str
    license: int | None = None
    rights_holder: str | None = None
    date: str | None = None
    latitude: float | None = None
    longitude: float | None = None


class _Document(msgspec.Struct, frozen=True):
    images: list[msgspec.Raw]
    annotations: list[_Annotation]
    categories: list[_Category]
    licenses: list[_License] = []


class _PlantNetPicture(msgspec.Struct, frozen=True, gc=False):
    species_id: str
    split: Literal["train", "val", "test"]
    obs_id: str | int | None = None
    author: str | None = None
    license: str | None = None


def read_inaturalist(name: str, root: Path, default_license: str = "") -> SourceContents:
    """Reads the plants of an iNaturalist 2021 folder.

    Training pictures come from `train.json`, else from `train_mini.json`; test pictures from `val.json`, if it exists.
    A license is its URL, or its name if it has no URL; an id that is not listed counts as an unknown license. Missing
    and impossible dates and coordinates are unknown. Observations are not published, so pictures have no group.

    Raises:
        DataError: A file is missing or damaged, the files contradict each other, or there are no plants.
    """
    train = _Part(_train_file(root))
    records = list(train.records("train", default_license))
    if not records:
        raise DataError(f"{train.file} holds no plants", limit=f"pictures of kingdom {_PLANTS}", remedy=_REMEDY)
    parts = [train]
    if has_list(root / _TEST_FILE):
        parts.append(_Part(root / _TEST_FILE))
        parts[1].agree_with(train)
        records += parts[1].records("test", default_license)
    if twice := _repeated(record.path for record in records):
        raise DataError(f"two images of {root} have the same file name", value=twice[0], remedy=_REMEDY)
    others = {number: each for part in parts for number, each in part.categories.items() if each.kingdom != _PLANTS}
    left_out = [
        LeftOut(
            picture=f"{name}:{category.image_dir_name or category.name}",
            code="not_a_plant",
            reason=f"{category.name} belongs to kingdom {category.kingdom}; only {_PLANTS} is read",
            num_pictures=sum(part.num_pictures[number] for part in parts),
        )
        for number, category in others.items()
    ]
    left_out += _without_pictures(name, train.plants.values(), records)
    return SourceContents(root, records, left_out, archives=_archives(root, records))


def read_negatives(name: str, root: Path) -> dict[str, list[Other]]:
    """Lists the pictures without a plant of an iNaturalist 2021 folder.

    Returns:
        Split -> pictures: "fit" for those of `train.json` or `train_mini.json`, "test" for those of `val.json`.

    Raises:
        DataError: A file is missing or damaged.
    """
    files = {"fit": _train_file(root), "test": root / _TEST_FILE}
    found: dict[str, list[Other]] = {}
    for split, file in files.items():
        if has_list(file):
            part = _Part(file)
            found[split] = [
                Other(name, part.path(image), category.name, split, sys.intern(category.kingdom))
                for image in part.images()
                if (category := part.categories.get(part.category_of.get(image.id, -1))) and category.kingdom != _PLANTS
            ]
    return found


def choose_alike(pictures: list[Other], most: int, seed: int) -> list[Other]:
    """Chooses pictures at random, of all names alike; the order stays that of the file."""
    num_before: Counter[str] = Counter()
    turns = []
    for place in np.random.default_rng(seed).permutation(len(pictures)).tolist():
        name = pictures[place].scientific_name
        turns.append((num_before[name], place))
        num_before[name] += 1
    turns.sort(key=lambda turn: turn[0])
    return [pictures[place] for place in sorted(place for _, place in turns[:most])]


def read_plantnet(name: str, root: Path, default_license: str = "") -> SourceContents:
    """Reads a Pl@ntNet-300K folder: both JSON files, and `images/{train,val,test}/<species id>/<picture id>.jpg`.

    In version 1.0 the folders are `images_{train,val,test}/...`. Species ids stay strings, as the data set writes them.
    Pictures of one observation are one group.

    Raises:
        DataError: A file is missing or damaged, an id is not a number, a species has no name, or there are no pictures.
    """
    is_1_0 = has_list(root / NAMES_FILE_1_0) and not has_list(root / NAMES_FILE)
    plants = _plantnet_plants(root / (NAMES_FILE_1_0 if is_1_0 else NAMES_FILE))
    file = root / METADATA_FILE
    entries = read_json(file, dict[str, msgspec.Raw])
    images = "images_" if (root / "images_train").is_dir() else "images/"
    records = []
    for picture_id, picture in decode_entries(f"{file}: ", entries.items(), _PlantNetPicture):
        species_id = picture.species_id
        if species_id not in plants:
            raise DataError(
                f"{file}: a species without a name",
                value=f"{species_id}, of picture {picture_id}",
                remedy="add its name to the file of names",
            )
        if not picture_id or "/" in picture_id or "\0" in picture_id:
            raise DataError(f"{file}: a picture id is not a file name", value=picture_id, remedy="correct it")
        record = PictureRecord(
            path=f"{images}{picture.split}/{species_id}/{picture_id}.jpg",
            plant=plants[species_id],
            split=SPLIT_NAMES[picture.split],
            group="" if picture.obs_id is None else sys.intern(str(picture.obs_id)),
            author=sys.intern(picture.author or ""),
            license=sys.intern(picture.license or default_license),
        )
        records.append(record)
    if not records:
        raise DataError(f"{file} lists no pictures", limit="one entry for each picture", remedy="download it again")
    left_out = _without_pictures(name, plants.values(), records)
    return SourceContents(root, records, left_out, archives=_archives(root, records))


def _without_pictures(name: str, plants: Iterable[SourceClass], records: Iterable[PictureRecord]) -> list[LeftOut]:
    pictured = {record.plant.class_id for record in records}
    return [
        LeftOut(
            picture=f"{name}:{plant.class_id}",
            code="no_pictures",
            reason=f"the data set names {plant.name} but has no picture of it",
            num_pictures=0,
        )
        for plant in plants
        if plant.class_id not in pictured
    ]


def _plantnet_plants(file: Path) -> dict[str, SourceClass]:
    plants = {}
    for species_id, name in read_json(file, dict[str, str]).items():
        if not species_id.isascii() or not species_id.isdecimal():
            raise DataError(f"{file}: a species id is not a number", value=species_id, remedy="correct it")
        if not name.strip():
            raise DataError(f"{file}: species {species_id} has an empty name", remedy="add its scientific name")
        plants[species_id] = SourceClass(class_id=species_id, name=name, is_scientific=True)
    return plants


def _archives(root: Path, records: Sequence[PictureRecord]) -> tuple[Path, ...]:
    """Returns the archives that must be read, since pictures are not unpacked; train and test stand apart."""
    unpacked = all((root / record.path).is_file() for record in (records[0], records[-1]))
    return () if unpacked else tuple(archives_of(root))


def _train_file(root: Path) -> Path:
    for file in _TRAIN_FILES:
        if has_list(root / file):
            return root / file
    limit = f"a folder with {' or '.join(_TRAIN_FILES)}"
    raise DataError("no iNaturalist data set in this folder", value=root, limit=limit, remedy="give another folder")


class _Part:
    """One of the JSON files of iNaturalist, which must not contradict itself."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._document = read_json(file, _Document)
        # torchvision renames what it unpacks.
        self._renamed = "2021_valid" if file.name == _TEST_FILE else f"2021_{file.stem}"
        self._is_renamed = (file.parent / self._renamed).is_dir() and not (file.parent / file.stem).is_dir()
        self.categories = {category.id: category for category in self._document.categories}
        annotations = self._document.annotations
        self.category_of = {annotation.image_id: annotation.category_id for annotation in annotations}
        unknown = {*self.category_of.values()} - self.categories.keys()
        faults = [
            *(f"category {each} is listed twice" for each in _repeated(each.id for each in self._document.categories)),
            *(f"image {each} has two annotations" for each in _repeated(each.image_id for each in annotations)),
            *(f"category {each} does not exist" for each in sorted(unknown)),
        ]
        if faults:
            raise self._contradiction(faults[0])
        self.num_pictures = Counter(self.category_of.values())
        self.plants = {
            number: SourceClass(
                class_id=str(number),
                name=category.name,
                is_scientific=True,
                common_name=category.common_name or "",
                genus=category.genus or "",
                family=category.family or "",
                order=category.order or "",
            )
            for number, category in self.categories.items()
            if category.kingdom == _PLANTS
        }

    def agree_with(self, train: "_Part") -> None:
        """Takes the classes of the training file, with which those of this one must agree."""
        known = {(number, plant.name) for number, plant in train.plants.items()}
        strange = [plant.name for number, plant in self.plants.items() if (number, plant.name) not in known]
        if strange:
            remedy = "take both files from one release"
            raise DataError(f"{self.file} has another category than {train.file}", value=strange[0], remedy=remedy)
        self.plants = train.plants

    def path(self, image: _Image) -> str:
        """Returns where a picture lies, relative to the folder of the file."""
        path = image.file_name
        if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise DataError(
                f"{self.file}: the file of image {image.id} is outside of the data set",
                value=path or "an empty name",
                limit="a path below the data set's folder",
                remedy=_REMEDY,
            )
        first, _, rest = path.partition("/")
        return f"{self._renamed}/{rest}" if self._is_renamed and first == self.file.stem else path

    def _contradiction(self, fault: str) -> DataError:
        return DataError(f"{self.file} contradicts itself", value=fault, remedy=_REMEDY)

    def images(self) -> Iterator[_Image]:
        entries = enumerate(self._document.images)
        return (image for _, image in decode_entries(f"{self.file}: images", entries, _Image))

    def records(self, split: Split, default_license: str) -> Iterator[PictureRecord]:
        licenses = {None: default_license} | {
            entry.id: entry.url or entry.name or default_license for entry in self._document.licenses
        }
        missing = dict(self.category_of)
        for image in self.images():
            category = missing.pop(image.id, None)
            if category is None:
                raise self._contradiction(f"image {image.id} has no annotation, or is listed twice")
            if plant := self.plants.get(category):
                yield PictureRecord(
                    path=self.path(image),
                    plant=plant,
                    split=split,
                    author=sys.intern(image.rights_holder or ""),  # few authors have many pictures
                    license=licenses.get(image.license, ""),
                    taken_on=day_of((image.date or "")[:10]),
                    coordinates=place_of(image.latitude, image.longitude),
                )
        if missing:
            raise self._contradiction(f"image {min(missing)} does not exist")


def _repeated(values: Iterable[Key]) -> list[Key]:
    return [value for value, number in Counter(values).items() if number > 1]


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """Reads a JSON file, which may still be in its archive; unknown fields are ignored.

    Long lists are kept as undecoded entries (`msgspec.Raw`, views into the file's bytes) and decoded one at a time, so
    that a million decoded entries are never in memory at once.

    Raises:
        DataError: The file is missing, truncated or not JSON, or lacks a field.
    """
    content = read_list(path)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise _unfit(f"{path}", error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is truncated or not JSON", value=error, remedy="download or copy it again") from error


def decode_entries(
    place: str, entries: Iterable[tuple[Key, msgspec.Raw]], kind: type[Kind]
) -> Iterator[tuple[Key, Kind]]:
    """Decodes the entries of a list or object, one at a time; `place` is file and list, for the error.

    Raises:
        DataError: An entry is damaged or lacks a field.
    """
    decode = msgspec.json.Decoder(kind).decode
    for key, entry in entries:
        try:
            yield key, decode(entry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unfit(f"{place}[{key}]", error) from error


def _unfit(place: str, error: Exception) -> DataError:
    return DataError(f"{place} cannot be read: {error}", remedy="correct the entry, or download the file again")
