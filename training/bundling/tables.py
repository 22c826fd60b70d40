"""Fits what turns the logits and features of a network file into answers: its temperature and its tables.

Letters in names: N calibration plants, one picture each; M pictures without a plant; T taxa.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import numpy as np
import numpy.typing as npt

from models.calibration import Calibration, Cutoffs, FeatureTable, FittedOn, conformal_table_of
from models.metrics import Share, share
from models.place import PlacePrior
from models.ranking import RANKS, Promises, Rank
from models.taxonomy import Taxonomy
from training.bundling.place import FittedPlace, Records, fit_place
from training.bundling.rejection import (
    FittedHead,
    HeadInputs,
    distances_to_others,
    familiar_cutoff,
    fit_familiarity,
    fit_features,
    fit_plant_head,
)
from training.bundling.thresholds import FittedThresholds, fit_thresholds
from training.evaluation.answers import distances, plant_scores
from training.evaluation.predictions import (
    Outputs,
    Predictions,
    calibrated_predictions,
    chunks,
)
from training.evaluation.predictions import named as named_at
from training.evaluation.split_metrics import Scores, auroc


class LabeledOutputs(msgspec.Struct, frozen=True):
    """What a network file says of some pictures, and their labels."""

    outputs: Outputs
    labels: npt.NDArray[np.int64]
    """Position of each picture's output."""


class TableData(msgspec.Struct, frozen=True):
    """What the tables of a network file are fitted on."""

    taxonomy: Taxonomy
    calibration: LabeledOutputs
    """One picture of each calibration plant."""
    training: LabeledOutputs
    """Training pictures, preprocessed as in the service."""
    negatives: Outputs | None
    """Pictures without a plant."""
    negative_groups: npt.NDArray[np.intp]
    """Group of each picture without a plant, left out as a whole in cross-validation."""
    prior_T: npt.NDArray[np.float64]
    """Share of each taxon among the training pictures, above 0."""
    data: str
    """Data and split of the calibration pictures."""
    num_pictures: int
    """Number of calibration pictures, all of each plant."""
    other_data: bool = False
    """Whether all these pictures are of other data than the network was trained with. It may have been trained on the
    calibration plants, so they prove nothing."""
    negatives_data: str = "pictures without a plant"
    """What the pictures without a plant are, in words."""
    place: "PlaceData | None" = None
    """None if too few training pictures have a place."""


class PlaceData(msgspec.Struct, frozen=True):
    """Where the pictures were taken."""

    prior: PlacePrior
    """Fitted on training pictures."""
    records: Records
    """Of the calibration plants that have a place."""
    has_place_N: npt.NDArray[np.bool_]
    """Which of the calibration plants these are."""


class Rejection(msgspec.Struct, frozen=True):
    """How well pictures without a plant are told from plants; each was left out of the fit that judges it."""

    data: str
    """What these pictures are, in words."""
    auroc: float
    """Chance that a calibration plant has a higher plant score."""
    accepted: Share
    """Pictures whose plant score reaches the cutoff."""
    named: Share
    """Pictures that the verdict names at any rank."""


class LeftOutPlants(msgspec.Struct, frozen=True):
    """How well plants of taxa that the bundle does not know are told from known ones.

    These are the calibration plants, each judged as if its taxon were unknown: without its outputs and without its
    place among the features. The network itself was trained with the taxon, so with plants that are new to it the
    figures are worse. The cutoff of familiarity was set on the same plants.
    """

    data: str
    """Data and split of the calibration plants."""
    auroc: float
    """Chance that a calibration plant is more familiar."""
    named_species: Share
    """Those that the verdict names as a species."""


class FittedTables(msgspec.Struct, frozen=True):
    """The tables of a network file and its thresholds."""

    calibration: Calibration
    thresholds: FittedThresholds
    rejection: Rejection | None
    """None without pictures that show no plant."""
    left_out: LeftOutPlants | None = None
    """None if there is one taxon only."""
    place: FittedPlace | None = None
    """None if there are too few places, or if they do not help."""


def fit_tables(data: TableData, temperature: float, fixed: Mapping[Rank, float]) -> FittedTables:
    """Fits everything that follows the temperature.

    The features are fitted on training pictures. Familiarity, both cutoffs, the thresholds and the candidate sets are
    fitted on the calibration plants; the cutoff of familiarity also on the same plants as if their taxa were unknown;
    the thresholds on those that both cutoffs keep, since no other plant is named. Calibration plants of other data
    promise nothing.

    Args:
        data: The outputs of the network file.
        temperature: Its temperature.
        fixed: Thresholds of some ranks, to be used in place of fitted ones.
    """
    training, plants = data.training, data.calibration
    trained_taxa_N = data.taxonomy.taxon_of_output[training.labels]
    features = fit_features(training.outputs.features[:], trained_taxa_N)
    rows = np.arange(len(plants.labels))
    found = calibrated_predictions(plants.outputs.logits, plants.labels, rows, data.taxonomy, temperature)
    distance_N = distances(features, plants.outputs.features)
    familiarity = fit_familiarity(found.confidence_N, distance_N)
    familiar_N = familiarity.scores(found.confidence_N, distance_N)
    strangers = _left_out(data, features, np.unique(trained_taxa_N), temperature)
    strange_N = familiarity.scores(strangers.confidence_N, strangers.distance_N)
    head = _fit_head(data, features, found.confidence_N, distance_N, temperature)
    cutoffs = Cutoffs(plant=head.cutoff if head else 0.0, familiar=familiar_cutoff(familiar_N, strange_N))
    calibration = Calibration(
        conformal=conformal_table_of(found.right_N, found.taxon_labels_N, data.prior_T),
        features=features,
        familiarity=familiarity,
        plant_head=head.head if head else None,
        cutoffs=cutoffs,
        fitted_on=FittedOn(
            data=data.data,
            date=datetime.now(UTC).date().isoformat(),
            num_plants=len(plants.labels),
            num_pictures=data.num_pictures,
            num_negatives=0 if data.negatives is None else len(data.negatives.logits),
        ),
    )
    kept_N = familiar_N >= cutoffs.familiar
    if head:
        kept_N &= plant_scores(head.head, plants.outputs.features, found.confidence_N, distance_N) >= head.cutoff
    thresholds = fit_thresholds(found.subset(kept_N).rank_scores, fixed)
    if data.other_data:
        thresholds = thresholds.without_promises()
    place = _fit_place(data, temperature, kept_N, fixed)
    left_out = None
    if len(strange_N):
        named_N = (strange_N >= cutoffs.familiar) & named_at(strangers.species_N, thresholds.species.threshold)
        if head:
            seen = plants.outputs.features, strangers.confidence_N, strangers.distance_N
            named_N &= plant_scores(head.head, *seen) >= head.cutoff
        left_out = LeftOutPlants(data.data, auroc(familiar_N, strange_N), share(int(named_N.sum()), len(named_N)))
    rejection = _rejection(data, calibration, thresholds, head, temperature) if head else None
    return FittedTables(calibration, thresholds, rejection, left_out, place)


def _fit_place(
    data: TableData, temperature: float, kept_N: npt.NDArray[np.bool_], fixed: Mapping[Rank, float]
) -> FittedPlace | None:
    if data.place is None:
        return None
    chosen = np.flatnonzero(data.place.has_place_N)
    plants = data.calibration
    found = fit_place(
        data.place.prior,
        data.place.records,
        plants.outputs.choose(chosen).logits,
        plants.labels[chosen],
        taxonomy=data.taxonomy,
        temperature=temperature,
        kept_N=kept_N[chosen],
        prior_T=data.prior_T,
        fixed=fixed,
    )
    if found is not None and data.other_data:
        found = msgspec.structs.replace(found, rule=msgspec.structs.replace(found.rule, promises=Promises()))
    return found


class _Strangers(msgspec.Struct, frozen=True):
    """Calibration plants as if their taxa were unknown."""

    confidence_N: Scores
    distance_N: Scores
    species_N: Scores
    """Score of the likeliest species."""


def _left_out(
    data: TableData, features: FeatureTable, trained_taxa_T: npt.NDArray[np.intp], temperature: float
) -> _Strangers:
    """Leaves the taxon of each calibration plant out: its outputs and its mean; no plant if there is one taxon only."""
    plants, taxonomy = data.calibration, data.taxonomy
    if len(trained_taxa_T) < 2 or len(taxonomy.taxa) < 2:
        return _Strangers(*(np.zeros(0) for _ in _Strangers.__struct_fields__))
    taxon_N = taxonomy.taxon_of_output[plants.labels]
    confidence, species = [], []
    for part in chunks(*plants.outputs.logits.shape):
        others = np.where(taxonomy.taxon_of_output == taxon_N[part, None], -np.inf, plants.outputs.logits[part])
        found = calibrated_predictions(others, plants.labels[part], taxon_N[part], taxonomy, temperature)
        confidence.append(found.confidence_N)
        species.append(found.rank_scores["species"].score_N)
    distance_N = distances_to_others(features, trained_taxa_T, plants.outputs.features[:], taxon_N)
    return _Strangers(np.concatenate(confidence), distance_N, np.concatenate(species))


def training_prior(labels: npt.NDArray[np.int64], taxonomy: Taxonomy) -> npt.NDArray[np.float64]:
    """Returns the share of each taxon among training pictures; a taxon without any counts as if it had one."""
    counts_T = np.bincount(taxonomy.taxon_of_output[labels], minlength=len(taxonomy.taxa)).clip(1)
    return np.asarray(counts_T / counts_T.sum())


def _unlabeled(outputs: Outputs, taxonomy: Taxonomy, temperature: float) -> Predictions:
    """Returns predictions whose labels say nothing."""
    labels, rows = np.zeros(len(outputs.logits), dtype=np.int64), np.arange(len(outputs.logits))
    return calibrated_predictions(outputs.logits, labels, rows, taxonomy, temperature)


def _fit_head(
    data: TableData, features: FeatureTable, confidence_N: Scores, distance_N: Scores, temperature: float
) -> FittedHead | None:
    if data.negatives is None:
        return None
    training, negatives = (
        _head_inputs(outputs, features, data.taxonomy, temperature)
        for outputs in (data.training.outputs, data.negatives)
    )
    plants = HeadInputs(data.calibration.outputs.features[:], confidence_N, distance_N)
    return fit_plant_head(training, plants, negatives, data.negative_groups)


def _head_inputs(outputs: Outputs, features: FeatureTable, taxonomy: Taxonomy, temperature: float) -> HeadInputs:
    confidence_N = _unlabeled(outputs, taxonomy, temperature).confidence_N
    return HeadInputs(outputs.features[:], confidence_N, distances(features, outputs.features))


def _rejection(
    data: TableData, calibration: Calibration, thresholds: FittedThresholds, head: FittedHead, temperature: float
) -> Rejection:
    """Follows each picture without a plant to its verdict, with the plant score of the fit that left it out."""
    assert data.negatives is not None
    assert calibration.features is not None
    assert calibration.familiarity is not None
    assert calibration.cutoffs is not None
    found = _unlabeled(data.negatives, data.taxonomy, temperature)
    least = thresholds.thresholds
    reaches_M = np.any([named_at(found.rank_scores[rank].score_N, getattr(least, rank)) for rank in RANKS], axis=0)
    distance_M = distances(calibration.features, data.negatives.features)
    familiar_M = calibration.familiarity.scores(found.confidence_N, distance_M) >= calibration.cutoffs.familiar
    num_accepted, num_named = head.accepted_M.sum(), (head.accepted_M & familiar_M & reaches_M).sum()
    accepted, named = (share(int(number), len(reaches_M)) for number in (num_accepted, num_named))
    return Rejection(data.negatives_data, head.auroc, accepted, named)
