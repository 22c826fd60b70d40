"""The JSON record of `/model`. Fields may be added, but never renamed or removed."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final

import msgspec

from models.bundle_record import Architecture, CommercialUse, MeasuredCoverage, Metric, Precision
from models.place import PLACE_PART
from models.preprocess import InputSpec
from models.ranking import NAMES_ARE_GUESSES, Promises, Thresholds
from models.taxonomy import Taxon
from serving.engine.loaded_bundle import LoadedBundle

_EXAMPLE_TAXON: Final = "nigella-damascena"
_LISTED_UNCALIBRATED: Final = 100


class CalibrationFacts(msgspec.Struct, frozen=True):
    """What the scores, the verdict and the candidate sets of the model were fitted on."""

    data: str
    """Data and split, in words."""
    fitted: str
    """Day of the fit, UTC."""
    num_plants: int
    """Number of calibration plants; pictures of one plant count once."""
    num_pictures: int
    """Number of calibration pictures."""
    num_negatives: int
    """Number of pictures without a plant that the plant score was fitted on."""
    num_uncalibrated_taxa: int | None
    """Number of taxa without calibration plants; null if the model gives no candidate sets."""
    uncalibrated_taxa: tuple[str, ...]
    """Ids of these taxa, at most 100."""
    ece: Metric | None
    """Expected calibration error of the network that runs, on the test split; null if that network was not measured."""
    coverages: tuple[MeasuredCoverage, ...]
    """How often candidate sets of the network that runs held the right taxon on test pictures, for each coverage that
    was measured."""


class SourceView(msgspec.Struct, frozen=True):
    """A data set that the network was trained on."""

    name: str
    """Name of the data set."""
    num_pictures: int
    """Number of its pictures that the network was trained on."""
    licenses: dict[str, int]
    """License of those pictures, and the number of pictures."""
    licences: dict[str, int]
    """The same as `licenses`, for older clients."""
    note: str
    """What users of the weights must know about the data set."""
    num_authors: int
    """Number of distinct authors of those pictures."""
    commercial_use: CommercialUse
    """Whether the licenses of those pictures allow commercial use."""


class UploadLimits(msgspec.Struct, frozen=True):
    """The most that one identify request may hold."""

    num_pictures: int
    """Pictures of a request."""
    picture_bytes: int
    """Largest picture, bytes."""
    request_bytes: int
    """Largest request, bytes: all pictures, fields and headers of the form."""


class PlaceFacts(msgspec.Struct, frozen=True):
    """What the model knows about places, and how far an answer with a place follows it."""

    num_records: int
    """Training pictures with a place."""
    num_unknown_taxa: int
    """Taxa without any: place neither raises nor lowers them."""
    most_lowered: float
    """Place multiplies the score of a taxon by no less than this, against a taxon as frequent there as in the world."""


class CorrectionsView(msgspec.Struct, frozen=True):
    """How the service keeps what people say about answers."""

    days: int
    """How long."""


class ModelCard(msgspec.Struct, frozen=True):
    """What the bundle says about the model that answers."""

    name: str
    """Name of the bundle."""
    version: str
    """Version of the bundle."""
    label_hash: str
    """SHA-256 of the ordered output keys."""
    description: str
    """What the model can name, how it was trained, and its limits."""
    num_taxa: int
    """Number of plants that it can name; `/species` lists them."""
    num_species: int
    """Number of these that are species."""
    num_genera: int
    """Number of these that are genera, whose species it does not tell apart."""
    languages: tuple[str, ...]
    """Codes of the languages in which it has common names, those with the most plants first."""
    example: str | None
    """Address of a photograph of a plant that it knows, to try the service with; null if it knows none."""
    taxonomy_version: str
    """Edition of the names."""
    architecture: Architecture
    """The network."""
    input: InputSpec
    """The pictures that the network takes."""
    precision: Precision
    """Precision of the network that runs."""
    providers: tuple[str, ...]
    """Execution providers of ONNX Runtime, in order of preference, or OpenVINO."""
    scheduling: str
    """How network runs share the device, in words."""
    thresholds: Thresholds
    """For each rank, the least probability at which the verdict names it."""
    promises: Promises
    """For each rank, what calibration plants prove about the names given; null if there were too few to prove one."""
    calibration: CalibrationFacts | None
    """What the tables of the model were fitted on; null if it has none."""
    metrics: tuple[Metric, ...]
    """Figures of the fp32 network, also where another precision runs."""
    sources: list[SourceView]
    """The data sets that the network was trained on, with their licenses."""
    trained_on: str
    """The device that the network was trained on, in words."""
    created: str
    """When the bundle was sealed, UTC."""
    git_commit: str
    """Commit of botanify that exported the bundle, or "unknown"."""
    trained_commit: str
    """Commit of botanify that trained the network, or "unknown"."""
    manifest_sha256: str
    """SHA-256 of the manifest that the network was trained with; empty if unknown."""
    other_data: bool
    """Whether the metrics come from another manifest than that one."""
    warnings: tuple[str, ...]
    """A sentence for each thing that the bundle lacks, or that this version of the service ignores."""
    limits: UploadLimits
    """What the service accepts, so that a client can refuse a picture before it sends it."""
    place: PlaceFacts | None
    """What it knows about places; null if nothing, or if places do not help it."""
    uses_place: bool
    """Whether the place and the date of a request can change an answer."""
    uses_place_reason: str
    """Why, as a sentence."""
    corrections: CorrectionsView | None
    """How it keeps corrections; null if it keeps none."""


def model_card(loaded: LoadedBundle, limits: UploadLimits, correction_days: int | None = None) -> ModelCard:
    """Builds the response of `/model`."""
    bundle = loaded.bundle
    precision = loaded.precision
    record = bundle.record
    promises = loaded.answer_model.promises
    ranks = [taxon.rank for taxon in bundle.taxonomy.taxa]
    return ModelCard(
        name=record.name,
        version=record.version,
        label_hash=record.label_hash,
        description=record.description,
        num_taxa=len(ranks),
        num_species=ranks.count("species"),
        num_genera=ranks.count("genus"),
        languages=_languages(bundle.taxonomy.taxa),
        example="/web/love-in-a-mist.jpg" if _EXAMPLE_TAXON in bundle.taxonomy.by_id else None,
        taxonomy_version=bundle.taxonomy.taxonomy_version,
        architecture=record.architecture,
        input=record.input,
        precision=precision,
        providers=loaded.providers,
        scheduling=loaded.policy.describe(),
        thresholds=loaded.answer_model.thresholds,
        promises=promises,
        calibration=_calibration_facts(loaded),
        metrics=record.metrics,
        sources=[SourceView(**msgspec.structs.asdict(each), licences=each.licenses) for each in record.sources],
        trained_on=record.trained_on,
        created=record.created,
        git_commit=record.git_commit,
        trained_commit=record.trained_commit,
        manifest_sha256=record.manifest_sha256,
        other_data=record.other_data,
        warnings=(*bundle.warnings, *([NAMES_ARE_GUESSES] if promises == Promises() else [])),
        limits=limits,
        place=_place_facts(loaded),
        uses_place=loaded.answer_model.place is not None,
        uses_place_reason=_why_place_counts(loaded),
        corrections=None if correction_days is None else CorrectionsView(correction_days),
    )


def _languages(taxa: Sequence[Taxon]) -> tuple[str, ...]:
    """Names without a language are those of the data sets, which are English."""
    named = [
        {each.partition("-")[0] for each in taxon.names} | ({"en"} if taxon.common_names else set()) for taxon in taxa
    ]
    return tuple(language for language, _ in Counter(chain.from_iterable(map(sorted, named))).most_common())


def _place_facts(loaded: LoadedBundle) -> PlaceFacts | None:
    place = loaded.answer_model.place
    if place is None:
        return None
    counts = place.prior.counts
    return PlaceFacts(int(counts.sum()), int((counts == 0).sum()), float(place.rule.floor**place.rule.weight))


def _why_place_counts(loaded: LoadedBundle) -> str:
    if loaded.answer_model.place is not None:
        return "The model has records of where and when its plants were photographed."
    if PLACE_PART in loaded.bundle.record.parts:
        return "The model has records of places, but they did not help its network name calibration plants."
    return "The model was exported without records of places, so place and date are ignored."


def _calibration_facts(loaded: LoadedBundle) -> CalibrationFacts | None:
    fitted_on = loaded.calibration.fitted_on
    table = loaded.calibration.conformal
    if fitted_on is None:
        return None
    uncalibrated = () if table is None else loaded.calibration.uncalibrated_taxa
    bundle = loaded.bundle
    precision = loaded.precision
    metrics = bundle.record.metrics if precision == "fp32" else bundle.network(precision).metrics
    return CalibrationFacts(
        data=fitted_on.data,
        fitted=fitted_on.date,
        num_plants=fitted_on.num_plants,
        num_pictures=fitted_on.num_pictures,
        num_negatives=fitted_on.num_negatives,
        num_uncalibrated_taxa=None if table is None else len(uncalibrated),
        uncalibrated_taxa=tuple(
            loaded.taxonomy.taxa[position].taxon_id for position in uncalibrated[:_LISTED_UNCALIBRATED]
        ),
        ece=next((metric for metric in metrics if metric.name == "ece"), None),
        coverages=bundle.network(precision).coverages,
    )
