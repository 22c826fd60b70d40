"""The flags of export.py."""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from models.bundle_record import Precision
from models.ranking import RANKS, Probability, Rank
from training.recipe import Count, Pixels, WholeNumber
from training.toml_file import Section

PARITY_LIMIT: Final = 1e-3


class GivenThresholds(Section, frozen=True, kw_only=True):
    """Thresholds to use in place of the fitted ones; a rank whose threshold is given makes no promise."""

    species: Probability | None = None
    """Smallest probability of a species that the verdict names; default: fitted."""
    genus: Probability | None = None
    """Smallest summed probability of a genus; default: fitted."""
    family: Probability | None = None
    """Smallest summed probability of a family; default: fitted."""

    def by_rank(self) -> dict[Rank, float]:
        """Returns those that are given."""
        values = {rank: getattr(self, rank) for rank in RANKS}
        return {rank: value for rank, value in values.items() if value is not None}


class Export(Section, frozen=True, kw_only=True):
    """Exports a checkpoint to a sealed bundle."""

    checkpoint: Path
    """Checkpoint of training/train.py."""
    data: Path
    """Folder written by training/prepare.py. Its calibration split (validation if it has none) sets the temperatures;
    its test split gives the metrics."""
    shards: str = ""
    """Folder or URL (s3://, gs://) with the shards of packed data; default: the data folder."""
    out: Path
    """Folder of the new bundle; must not exist yet."""
    name: str = ""
    """Name of the model; default: that of the data folder."""
    model_version: str = ""
    """Version of the model; default: 1.0.0, or the next after the last bundle of this name beside `out`, as 1.1.0."""
    description: str = ""
    """What the model names and for whom, in a sentence that the page shows; default: the size of the data."""
    precision: tuple[Precision, ...] = ("fp32",)
    """Precisions of the networks in the bundle; fp32 is required. fp16 is for GPUs, int8 for CPUs. A network that fails
    its release checks is left out; the bundle then holds its figures only. int8 takes minutes."""
    judge_on: Path | None = None
    """Further prepared data with the same outputs, whose test split is measured too. int8 must lose less than half a
    point of top-1. Showing that takes at least 765 test pictures, and thousands if some predictions change."""
    other_data: bool = False
    """Calibrate and measure with data that the network was not trained with, such as another split. Its pictures may be
    among the training pictures, so every figure of the bundle says that it is other data."""
    calibration_pictures: Count = 256
    """Number of training pictures that set the ranges of int8."""
    serve_px: Pixels | None = None
    """Side of the network input in the service, px; default: that of the recipe. A value a little above the last
    training size is often best (Touvron et al. 2019); choose it on the validation split, never on the test split."""
    half_storage: bool = True
    """Store the weights of the fp32 network in half precision and compute in single precision: half the size, the same
    speed."""
    with_weights: bool = False
    """Put the weights into the bundle too, in full precision, so that train.py --weights BUNDLE can start from them."""
    note: str = ""
    """What users must know about the training pictures; written to the bundle and its model card."""
    negatives: tuple[Path, ...] = ()
    """Pictures that show no plant: folders, or CSV lists as for training/train.py. The bundle can then tell plants from
    other things; a few hundred pictures of many kinds are enough."""
    feature_pictures: Count = 20_000
    """Number of training pictures, of all taxa alike, from which the bundle learns where plants lie among the features.
    Each precision runs them one at a time."""
    thresholds: GivenThresholds = GivenThresholds()
    parity_limit: Annotated[float, msgspec.Meta(gt=0)] = PARITY_LIMIT
    """Largest accepted difference in probability from PyTorch."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the main process."""
