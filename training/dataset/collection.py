"""A collection: the data sets of a training set and its rules, read from `training/recipes/data_*.toml`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, field, structs

from models.errors import RecipeError
from training.dataset.sources.image_folder import read_image_folder
from training.dataset.sources.json_layouts import read_inaturalist, read_plantnet
from training.dataset.sources.record import SourceContents
from training.dataset.sources.table import COLUMNS, read_table
from training.toml_file import RECIPES, Section, check_section, read_toml

READERS: Final[dict[str, Callable[..., SourceContents]]] = {
    "inaturalist": read_inaturalist,
    "plantnet": read_plantnet,
    "image_folder": read_image_folder,
    "table": read_table,
}
"""`layout` in a collection -> reader of a source's name, root, license where it gives none, and columns of a table."""


_CHECKSUM: Final = re.compile(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}")
MergeRule = Literal["within_sources", "across_sources"]
CutShare = Annotated[float, Meta(ge=0.0, lt=1.0)]
NearCopyBits = Annotated[int, Meta(ge=0, le=8)]


def checked_checksum(text: str) -> str:
    """Returns a checksum in lower case, as KIND:DIGITS; nothing for nothing, and a ValueError for another form."""
    text = text.lower()
    if text and not _CHECKSUM.fullmatch(text):
        raise ValueError(f"{text!r} is no checksum: md5 has 32 hexadecimal digits, sha256 64")
    return text


class SourceEntry(Section, frozen=True, kw_only=True):
    """One data set."""

    layout: str
    """Its layout on disk: inaturalist, plantnet, image_folder or table."""
    root: Path
    """Its folder (for layout "table" the CSV file), relative to the folder that `--root` names."""
    license: str = ""
    """License of the pictures for which the data set gives none."""
    files: tuple[str, ...] = ()
    """What `prepare.py download` fetches into its folder: addresses (https://HOST/FILE.zip#md5=SUM, or #sha256=SUM), or
    a record of Zenodo (https://zenodo.org/api/records/5645731)."""
    note: str = ""
    """What a user of the weights must know about it; copied into the bundle."""
    names: dict[str, str] = field(default_factory=dict)
    """Class names as the data set writes them -> scientific names; corrects common and misspelt names."""
    columns: dict[str, str] = field(default_factory=dict)
    """For layout "table": our column -> the column of the list that stands for it, as in `{group = "plant_number"}`."""

    def __post_init__(self) -> None:
        for file in self.files:
            checked_checksum(file.partition("#")[2].replace("=", ":", 1))
        if self.layout not in READERS:
            raise ValueError(f"unknown layout {self.layout!r}: expected {', '.join(READERS)}")
        if self.columns and self.layout != "table":
            raise ValueError(f"`columns` is for layout table, not {self.layout}")
        if unknown := self.columns.keys() - {*COLUMNS}:
            raise ValueError(f"unknown column {', '.join(sorted(unknown))}: expected {', '.join(COLUMNS)}")


class Collection(Section, frozen=True, kw_only=True):
    """Several data sets, and the rules that make one training set of them."""

    name: str
    """Name of the training set."""
    description: str = ""
    """Its purpose, in a sentence or two."""
    sources: dict[str, SourceEntry]
    """Name in output keys -> data set."""
    merge: MergeRule = "within_sources"
    """One output for each name of each source, several of which may share a taxon; or one output for each taxon."""
    synonyms: Path | None = None
    """Darwin Core Taxon file (GBIF backbone, WCVP; tab-separated) that maps synonyms to accepted names."""
    names: Path | None = None
    """CSV table of common names in several languages and of identifiers (docs/data_sets.md), one of those in
    `training/recipes` or relative to the folder that `--root` names."""
    leave_out: dict[str, str] = field(default_factory=dict)
    """Pictures with a wrong label, as source, colon, path -> what is wrong; `evaluate.py --suspects` finds some."""
    unknown_genera: CutShare = 0.0
    """Share of the genera that are kept out of the outputs. Lists of their pictures are written for --unknown."""
    negatives: Annotated[int, Meta(ge=0)] = 0
    """Pictures without a plant, at most so many of each split of iNaturalist, that are listed for --negatives."""
    validation_share: CutShare = 0.1
    """Share of each class's training pictures that becomes validation, in sources that publish no such split."""
    calibration_share: CutShare = 0.0
    """Share of each class's training pictures that calibrate a bundle; with 0 validation does, and names promise
    nothing."""
    test_share: CutShare = 0.1
    """Share of each class's pictures that becomes test, in sources that publish no such split."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of the random choice of these pictures."""
    min_side_px: Annotated[int, Meta(ge=1)] = 32
    """Pictures with a shorter side are left out as too small."""
    few_pictures: Annotated[int, Meta(ge=0)] = 20
    """Classes with fewer pictures are listed in the report."""
    near_copy_bits: NearCopyBits = 4
    """Pictures whose perceptual hashes differ in at most this many of 64 bits are near copies."""
    expect_outputs: Annotated[int, Meta(ge=0)] = 0
    """Fail unless the result has this many outputs; 0 accepts any number."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("a collection needs at least one source")
        for name in self.sources:
            if not name or name[0] in "-." or not {":", "/"}.isdisjoint(name) or not name.isprintable():
                raise ValueError(
                    f"the source {name!r} needs a printable name without colon or slash, dash or dot first"
                )


def collection_files() -> list[Path]:
    """Returns the collections in `training/recipes`."""
    return sorted(RECIPES.glob("data_*.toml"))


def read_collection(path: Path, without: Sequence[str] = ()) -> Collection:
    """Reads and checks a collection.

    Args:
        path: A TOML file; a bare name such as "data_5337" also finds `training/recipes/data_5337.toml`.
        without: Sources to leave out; the number of outputs is then not checked.

    Raises:
        RecipeError: The file is missing or not TOML, or has an unknown key or a value out of range; or there is no
            source of a name in `without`.
    """
    content, origin = read_toml(path, known=collection_files(), what="collection")
    collection = check_section(content, Collection, origin, what="collection")
    if collection.names is not None and (shipped := RECIPES / collection.names).exists():
        collection = structs.replace(collection, names=shipped)
    if not without:
        return collection
    kept = {name: entry for name, entry in collection.sources.items() if name not in without}
    if len(kept) + len({*without}) != len(collection.sources) or not kept:
        raise RecipeError(
            "--without does not fit the collection",
            value=" ".join(without),
            limit=f"some of {', '.join(collection.sources)}",
            remedy="correct the names",
        )
    return structs.replace(collection, sources=kept, expect_outputs=0)
