"""The records of the HTTP contract, as they go over the wire. The contract grows by additions only."""

from collections.abc import Sequence
from typing import Final

import msgspec

from models.bundle import Architecture, Bundle, DataSource, Metric, Precision
from models.preprocess import InputSpec
from models.ranking import RankedGroup, RankedTaxon, Thresholds, VerdictRank
from models.taxonomy import Rank, Taxon
from serving.identify import Answer
from serving.loaded_bundle import Release

MAX_IMAGES: Final = 5
"""Most pictures of one plant in a request."""
DEFAULT_K: Final = 5
"""Taxa, genera and families listed when nothing was asked for."""
MAX_K: Final = 50
"""Most taxa, genera and families that can be asked for."""


class ModelName(msgspec.Struct, frozen=True):
    """Which model answered."""

    name: str
    version: str
    label_hash: str
    """SHA-256 of the ordered output keys: two models with the same hash name the same outputs."""


class VerdictView(msgspec.Struct, frozen=True):
    """The one answer that the scores support."""

    rank: VerdictRank
    name: str | None
    """Scientific name; null when uncertain or not a plant."""
    score: float
    """Probability in [0, 1]."""
    reason: str
    """Why, in a sentence for people."""


class Prediction(msgspec.Struct, frozen=True):
    """A taxon and its probability."""

    position: int
    """1 for the most probable."""
    rank: Rank
    taxon_id: str
    """Stable identifier of the taxon."""
    scientific_name: str
    common_names: tuple[str, ...]
    genus: str
    family: str
    """Empty where unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, where known."""
    score: float
    """Probability in [0, 1]."""


class GroupScore(msgspec.Struct, frozen=True):
    """A genus or family and the summed probability of its taxa."""

    name: str
    score: float
    """Probability in [0, 1]."""


class ImageView(msgspec.Struct, frozen=True):
    """One of the pictures that were sent."""

    index: int
    """Position in the request, from 0."""
    width: int
    """Width of the upright original, px."""
    height: int
    """Height of the upright original, px."""


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
    """What was ignored or is worth knowing, in sentences."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a problem document (RFC 9457)."""

    type: str
    """URI of the kind of problem: urn:botanify:problem: and the code."""
    title: str
    """The kind of problem in a few words."""
    status: int
    """The HTTP status."""
    detail: str
    """This very problem in a sentence: what is wrong, what was given, what is accepted, what to do."""
    code: str
    """Stable name of the kind of problem, for programs."""
    request_id: str
    """The same as in the header X-Request-ID and in the logs."""
    index: int | None = None
    """Position of the picture at fault, from 0, where one is."""


class Health(msgspec.Struct, frozen=True):
    """That the service lives or is ready."""

    status: str


class SpeciesEntry(msgspec.Struct, frozen=True):
    """A taxon that the model can name."""

    taxon_id: str
    rank: Rank
    scientific_name: str
    common_names: tuple[str, ...]
    genus: str
    family: str
    """Empty where unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, where known."""


class SpeciesList(msgspec.Struct, frozen=True):
    """Taxa found by name, sorted by scientific name."""

    request_id: str
    species: list[SpeciesEntry]
    total: int
    """How many taxa the model can name in all."""
    warnings: list[str]
    """What was ignored, in sentences."""


class ModelCard(msgspec.Struct, frozen=True):
    """Everything the bundle says about the model that answers."""

    name: str
    version: str
    label_hash: str
    description: str
    """What it knows, how it was trained, what to beware of."""
    taxonomy_version: str
    num_taxa: int
    architecture: Architecture
    input: InputSpec
    precision: Precision
    """Which network of the bundle runs."""
    providers: tuple[str, ...]
    """Execution providers of ONNX Runtime, in order of preference."""
    scheduling: str
    """How runs of the network share the device, in words."""
    thresholds: Thresholds
    """Least probability at which the verdict names a rank."""
    metrics: tuple[Metric, ...]
    sources: tuple[DataSource, ...]
    """The data sets that taught the network, with their licences."""
    trained_on: str
    """The device that trained it, in words."""
    created: str
    """When the bundle was sealed, UTC."""
    git_commit: str


def identification(request_id: str, answer: Answer, warnings: list[str]) -> Identification:
    """Writes an answer the way the contract wants it."""
    ranking = answer.ranking
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


def species_entry(taxon: Taxon) -> SpeciesEntry:
    """Writes a taxon the way the contract wants it."""
    return SpeciesEntry(
        taxon_id=taxon.taxon_id,
        rank=taxon.rank,
        scientific_name=taxon.scientific_name,
        common_names=taxon.common_names,
        genus=taxon.genus,
        family=taxon.family,
        gbif_id=taxon.gbif_id,
    )


def model_card(release: Release) -> ModelCard:
    """Tells everything about the model that answers."""
    bundle, precision = release.bundle, release.precision
    record = bundle.record
    return ModelCard(
        name=record.name,
        version=record.version,
        label_hash=record.label_hash,
        description=record.description,
        taxonomy_version=bundle.taxonomy.taxonomy_version,
        num_taxa=len(bundle.taxonomy.taxa),
        architecture=record.architecture,
        input=record.input,
        precision=precision,
        providers=release.providers,
        scheduling=release.policy.describe(),
        thresholds=bundle.network(precision).thresholds,
        metrics=record.metrics,
        sources=record.sources,
        trained_on=record.trained_on,
        created=record.created,
        git_commit=record.git_commit,
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
