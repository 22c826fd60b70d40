"""Which data sets make up the training data, and by which rules: a TOML file in `training/recipes/data_*.toml`."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from training.toml_file import RECIPES, Section, check_section, read_toml

Layout = Literal["inaturalist", "plantnet", "image_folder", "table"]
MergeRule = Literal["within_sources", "across_sources"]
CutShare = Annotated[float, Meta(ge=0.0, lt=1.0)]


class SourceEntry(Section, frozen=True, kw_only=True):
    """One data set."""

    layout: Layout
    """How it lies on the disk."""
    root: Path
    """Its folder (of layout "table": the CSV file), relative to the folder that `--root` names."""
    license: str = field(name="licence", default="")
    """License of its pictures that name none."""
    note: str = ""
    """What a user of the weights must know of it; reaches the bundle."""
    names: dict[str, str] = field(default_factory=dict)
    """Class names as the data set writes them -> scientific names; for names that are common or misspelt."""


class Collection(Section, frozen=True, kw_only=True):
    """Several data sets and the rules that make one training set of them."""

    name: str
    """What the training set is called."""
    description: str = ""
    """What it is for, in a sentence or two."""
    sources: dict[str, SourceEntry]
    """Name in output keys -> data set."""
    merge: MergeRule = "within_sources"
    """One output for each name of each source, where several may be one taxon; or one output for each taxon."""
    synonyms: Path | None = None
    """Darwin Core Taxon file (GBIF backbone, WCVP; tab-separated) that maps synonyms to accepted names."""
    validation_share: CutShare = 0.1
    """Share of each class's training pictures that becomes validation, in sources that publish none."""
    calibration_share: CutShare = 0.0
    """Share of each class's training pictures that the temperature is fitted on; 0: on validation."""
    test_share: CutShare = 0.1
    """Share of each class's pictures that becomes test, in sources that publish none."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Changes which pictures those are."""
    min_side_px: Annotated[int, Meta(ge=1)] = 32
    """Pictures with a shorter side are left out as too small."""
    few_pictures: Annotated[int, Meta(ge=0)] = 20
    """Classes with fewer pictures are listed in the report."""
    near_copy_bits: Annotated[int, Meta(ge=0, le=8)] = 4
    """Pictures whose perceptual hashes differ in at most this many of 64 bits count as near duplicates."""
    expect_outputs: Annotated[int, Meta(ge=0)] = 0
    """Refuse to write anything unless so many outputs come out; 0 takes what is there."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("a collection needs at least one source")
        for name in self.sources:
            if not name or ":" in name or not name.isprintable():
                raise ValueError(f"the source {name!r} needs a printable name without a colon")


def collection_files() -> list[Path]:
    """The collections of this project."""
    return sorted(RECIPES.glob("data_*.toml"))


def read_collection(path: Path) -> Collection:
    """Reads and checks a collection.

    Args:
        path: A TOML file; a bare name such as "data_5337" also finds `training/recipes/data_5337.toml`.

    Raises:
        RecipeError: The file is missing, is no TOML, has an unknown key, or a value out of range.
    """
    content, origin = read_toml(path, known=collection_files())
    return check_section(content, Collection, origin)
