"""The JSON records of the HTTP API. Fields may be added, but never renamed or removed."""

import msgspec

from models.bundle_record import MeasuredCoverage
from models.calibration import CoverageKind
from models.ranking import Promise, VerdictRank
from models.taxonomy import Rank


class ModelName(msgspec.Struct, frozen=True):
    """The model that answered."""

    name: str
    version: str
    label_hash: str
    """SHA-256 of the ordered output keys: models with the same hash have the same outputs."""


class VerdictView(msgspec.Struct, frozen=True):
    """The most precise name that the scores support."""

    rank: VerdictRank
    name: str | None
    """Scientific name; null when uncertain or not a plant."""
    score: float
    """Probability in [0, 1]."""
    reason: str
    """The reason, as a sentence."""
    promise: Promise | None
    """What calibration plants prove about names of this rank; null if nothing is proved, no name is given, or the
    request chose the taxa."""
    unknown_plant: bool
    """Whether the rank is uncertain because the pictures show a plant unlike those that the model knows."""


class Prediction(msgspec.Struct, frozen=True):
    """A taxon and its probability."""

    position: int
    """Place in the ranking; 1 is the most probable."""
    rank: Rank
    taxon_id: str
    """Stable identifier of the taxon."""
    scientific_name: str
    common_names: tuple[str, ...]
    genus: str
    """Empty for a class that is known by its common name alone."""
    family: str
    """Empty if unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, if known."""
    score: float
    """Probability in [0, 1]."""


class GroupScore(msgspec.Struct, frozen=True):
    """A genus or family and the summed probability of its taxa."""

    name: str
    score: float
    """Probability in [0, 1]."""


class CandidatesView(msgspec.Struct, frozen=True):
    """The smallest set of taxa that includes the right one as often as the request asked for."""

    coverage: float
    """How often the set includes the right taxon, as the request asked."""
    kind: CoverageKind
    """Whether the coverage holds for the mean plant (marginal) or for the mean taxon (macro)."""
    guarantee: CoverageKind | None
    """The kind of coverage that is guaranteed; null if the request chose the taxa, a picture has the weight 0, or the
    model may have been trained on the calibration plants."""
    num_taxa: int
    """Number of taxa in the set."""
    score: float
    """Probability of the whole set."""
    taxa: list[Prediction]
    """The taxa of the set, the best candidate first; at most 100."""
    num_uncalibrated_taxa: int
    """Number of taxa of the model without calibration plants, about which the coverage says little."""
    measured: MeasuredCoverage | None
    """How often such sets held the right taxon on test pictures; null if that was not measured for this coverage, or
    nothing is guaranteed."""


class ImageView(msgspec.Struct, frozen=True):
    """A picture of the request."""

    index: int
    """Position in the request, from 0."""
    width: int
    """Width after the EXIF rotation, px."""
    height: int
    """Height after the EXIF rotation, px."""
    plant_score: float | None
    """Probability that it shows a plant; null if the model has no table for it."""
    weight: float
    """Share of this picture in the answer; the shares of all pictures sum to 1."""
    predictions: list[Prediction]
    """The three most likely taxa on this picture alone."""


class Identification(msgspec.Struct, frozen=True):
    """The answer about one plant."""

    request_id: str
    model: ModelName
    verdict: VerdictView
    predictions: list[Prediction]
    genera: list[GroupScore]
    families: list[GroupScore]
    plant_score: float | None
    """Probability that the pictures show a plant; null if the model has no table for it."""
    candidates: CandidatesView | None
    """The candidate set; null without the parameter `coverage`, or if the model has no table for it."""
    discarded_mass: float | None
    """Probability of the taxa outside of the parameter `taxa`; null without it."""
    images: list[ImageView]
    warnings: list[str]
    """A sentence for each part of the request that was ignored."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a problem document (RFC 9457)."""

    type: str
    """URI of the kind of problem: `urn:botanify:problem:` and the code."""
    title: str
    """The kind of problem in a few words."""
    status: int
    """The HTTP status."""
    detail: str
    """This problem in one sentence: what is wrong, the value, the limit and the remedy."""
    code: str
    """Stable name of the kind of problem, for programs."""
    request_id: str
    """The same as in the header `X-Request-ID` and in the logs."""
    index: int | None = None
    """Position of the picture at fault, from 0; absent if the problem is not about one picture."""


class Health(msgspec.Struct, frozen=True):
    """The result of a health probe."""

    status: str
