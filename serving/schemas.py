"""The JSON records of the HTTP API. Fields may be added, but never renamed or removed."""

from collections.abc import Sequence

import msgspec

from models.bundle import Bundle
from models.ranking import RankedGroup, RankedTaxon
from models.taxonomy import Rank
from models.verdict import VerdictRank
from serving.identify import Answer


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


class ImageView(msgspec.Struct, frozen=True):
    """A picture of the request."""

    index: int
    """Position in the request, from 0."""
    width: int
    """Width after the EXIF rotation, px."""
    height: int
    """Height after the EXIF rotation, px."""


class Identification(msgspec.Struct, frozen=True):
    """The answer about one plant."""

    request_id: str
    model: ModelName
    verdict: VerdictView
    predictions: list[Prediction]
    genera: list[GroupScore]
    families: list[GroupScore]
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


def identification(request_id: str, answer: Answer, warnings: list[str]) -> Identification:
    """Builds the response to an identify request."""
    ranking = answer.plant
    verdict = ranking.verdict
    return Identification(
        request_id=request_id,
        model=_model_name(answer.bundle),
        verdict=VerdictView(verdict.rank, verdict.name, verdict.score, verdict.reason),
        predictions=[_prediction(position, ranked) for position, ranked in enumerate(ranking.taxa, start=1)],
        genera=_group_scores(ranking.genera),
        families=_group_scores(ranking.families),
        images=[ImageView(index, size.width, size.height) for index, size in enumerate(answer.sizes)],
        warnings=warnings,
    )


def _prediction(position: int, ranked: RankedTaxon) -> Prediction:
    taxon = ranked.taxon
    return Prediction(
        position=position,
        rank=taxon.rank,
        taxon_id=taxon.taxon_id,
        scientific_name=taxon.scientific_name,
        common_names=taxon.common_names,
        genus=taxon.genus,
        family=taxon.family,
        gbif_id=taxon.gbif_id,
        score=ranked.score,
    )


def _group_scores(groups: Sequence[RankedGroup]) -> list[GroupScore]:
    return [GroupScore(group.name, group.score) for group in groups]


def _model_name(bundle: Bundle) -> ModelName:
    return ModelName(bundle.record.name, bundle.record.version, bundle.record.label_hash)
