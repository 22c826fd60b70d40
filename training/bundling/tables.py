"""Fits what turns the logits and features of a network file into answers: its temperature and its tables.

Letters in names: N calibration plants, one picture each; M pictures without a plant; T taxa.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import numpy as np
from msgspec.structs import replace

from models.calibration import Calibration, Cutoffs, FamiliarityTable, FeatureTable, FittedOn, conformal_table_of
from models.metrics import Share, Whole, share
from models.ranking import RANKS, Floats, Promises, Rank
from models.taxonomy import Taxonomy
from training.bundling.place import FittedPlace, PlaceData, fit_place
from training.bundling.rejection import (
    FittedHead,
    HeadInputs,
    distances_to_others,
    familiar_cutoff,
    fit_features,
    fit_plant_head,
)
from training.bundling.thresholds import FittedThresholds, fit_thresholds
from training.evaluation.answers import distances
from training.evaluation.predictions import (
    ComputedRows,
    Flags,
    Outputs,
    Predictions,
    Rows,
    calibrated_predictions,
    named,
)
from training.evaluation.split_metrics import auroc


class LabeledOutputs(msgspec.Struct, frozen=True):
    """What a network file says of some pictures, and their labels."""

    outputs: Outputs
    labels: Whole
    """Position of each picture's output."""


class TableData(msgspec.Struct, frozen=True):
    """What the tables of a network file are fitted on."""

    taxonomy: Taxonomy
    calibration: LabeledOutputs
    """One picture of each calibration plant."""
    training_features: Rows
    """Features of training pictures, preprocessed as in the service."""
    training_labels: Whole
    """Position of each training picture's output."""
    validation: Outputs | None
    """One picture of each validation plant, at least two, for the plant head."""
    negatives: Outputs | None
    """Pictures without a plant; None makes no plant head."""
    negative_groups: Whole
    """Group of each picture without a plant, left out as a whole in cross-validation."""
    prior_T: Floats
    """Share of each taxon among the training pictures, above 0."""
    data: str
    """Data and split of the calibration pictures."""
    num_pictures: int
    """Number of calibration pictures, all of each plant."""
    other_data: bool = False
    """Whether all these pictures are of other data than the network was trained with. It may have been trained on the
    calibration plants, so they prove nothing."""
    is_validation: bool = False
    """Whether the calibration plants are the validation split. It chose the checkpoint, so they prove nothing."""
    negatives_data: str = "pictures without a plant"
    """What the pictures without a plant are, in words."""
    place: PlaceData | None = None
    """None if too few training pictures have a place."""


class Rejection(msgspec.Struct, frozen=True):
    """How well pictures without a plant are told from plants; each was left out of the fit that judges it."""

    data: str
    """What these pictures are, in words."""
    auroc: float
    """Chance that a validation plant has a higher plant score."""
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

    The features are fitted on training pictures, and the plant head with its cutoff on validation plants. Familiarity,
    its cutoff, the thresholds and the candidate sets are fitted on the calibration plants: its cutoff also on the same
    plants as if their taxa were unknown, and the thresholds on those that both cutoffs keep, since no other plant is
    named. Calibration plants of other data or of the validation split promise nothing. `fixed` has thresholds that are
    not fitted.
    """
    plants, trained_taxa_N = data.calibration, data.taxonomy.taxon_of_output[data.training_labels]
    table = fit_features(data.training_features, trained_taxa_N, data.taxonomy.genera)
    found, known = _see(plants.outputs, data.taxonomy, temperature, table, plants.labels)
    familiarity = FamiliarityTable(np.sort(known.confidence), np.sort(known.distance))
    familiar_N, strange_N = familiarity.scores(known.confidence, known.distance), np.zeros(0)
    strangers = _as_strangers(data, known, table, np.unique(trained_taxa_N), temperature)
    if strangers is not None:
        strange_N = familiarity.scores(strangers[0].confidence, strangers[0].distance)
    cutoffs = Cutoffs(familiar=familiar_cutoff(familiar_N, strange_N))
    head = things = None
    if data.negatives is not None and data.validation is not None:
        things = _see(data.negatives, data.taxonomy, temperature, table)
        head = fit_plant_head(
            _see(data.validation, data.taxonomy, temperature, table)[1], things[1], data.negative_groups
        )
        cutoffs = Cutoffs(head.cutoff, cutoffs.familiar)
    kept_N = familiar_N >= cutoffs.familiar
    if head is not None:
        kept_N &= head.accepts(known)
    thresholds = fit_thresholds(found.subset(kept_N).rank_scores, fixed)
    place = _fit_place(data, kept_N, temperature, fixed)
    if data.other_data or data.is_validation:
        thresholds = FittedThresholds(*(replace(getattr(thresholds, rank), promise=None) for rank in RANKS))
        if place is not None:
            place = replace(place, rule=replace(place.rule, promises=Promises()))
    left_out = rejection = None
    if strangers is not None:
        named_N = (strange_N >= cutoffs.familiar) & named(strangers[1], thresholds.species.threshold)
        if head is not None:
            named_N &= head.accepts(strangers[0])
        left_out = LeftOutPlants(data.data, auroc(familiar_N, strange_N), share(int(named_N.sum()), len(named_N)))
    if head is not None and things is not None:
        familiar_M = familiarity.scores(things[1].confidence, things[1].distance) >= cutoffs.familiar
        rejection = _rejection(data.negatives_data, head, things[0], familiar_M, thresholds)
    fitted_on = FittedOn(
        data=data.data,
        date=datetime.now(UTC).date().isoformat(),
        num_plants=len(plants.labels),
        num_pictures=data.num_pictures,
        num_negatives=0 if data.negatives is None else len(data.negatives.logits),
    )
    calibration = Calibration(
        conformal=conformal_table_of(found.right_N, found.taxon_labels_N, data.prior_T),
        features=table,
        familiarity=familiarity,
        plant_head=head.head if head else None,
        cutoffs=cutoffs,
        fitted_on=fitted_on,
    )
    return FittedTables(calibration, thresholds, rejection, left_out, place)


def _fit_place(data: TableData, kept_N: Flags, temperature: float, fixed: Mapping[Rank, float]) -> FittedPlace | None:
    """Fits the rule of places on the calibration plants, of which some are kept; None without places."""
    if data.place is None:
        return None
    plants = data.calibration
    return fit_place(
        data.place,
        plants.outputs.logits,
        plants.labels,
        kept_N,
        taxonomy=data.taxonomy,
        temperature=temperature,
        prior_T=data.prior_T,
        fixed=fixed,
    )


def _see(
    outputs: Outputs, taxonomy: Taxonomy, temperature: float, table: FeatureTable, labels: Whole | None = None
) -> tuple[Predictions, HeadInputs]:
    """What the network and the table of distances say of some pictures; without labels, the first output is right."""
    labels = np.zeros(len(outputs.logits), np.int64) if labels is None else labels
    found = calibrated_predictions(outputs.logits, labels, taxonomy, temperature)
    return found, HeadInputs(outputs.features[:], found.confidence_N, distances(table, outputs.features))


def _as_strangers(
    data: TableData, known: HeadInputs, table: FeatureTable, trained_taxa_T: Whole, temperature: float
) -> tuple[HeadInputs, Floats] | None:
    """What is seen of each calibration plant without its taxon, that is without its outputs and without its mean.

    Also returns the score of its likeliest species; None if there is one taxon only.
    """
    logits, labels, taxonomy = data.calibration.outputs.logits, data.calibration.labels, data.taxonomy
    if len(trained_taxa_T) < 2 or len(taxonomy.taxa) < 2:
        return None
    found = without_taxon(logits, labels, taxonomy, temperature)
    distance_N = distances_to_others(table, trained_taxa_T, known.features, taxonomy.taxon_of_output[labels])
    return HeadInputs(known.features, found.confidence_N, distance_N), found.rank_scores["species"].score_N


def without_taxon(logits: Rows, labels: Whole, taxonomy: Taxonomy, temperature: float) -> Predictions:
    """What the network says of each picture without the outputs of its taxon."""
    taxon_N = taxonomy.taxon_of_output[labels]

    def read(chosen: slice | Whole) -> Floats:
        own_NO = taxonomy.taxon_of_output == taxon_N[chosen, None]
        return np.where(own_NO, np.float32(-np.inf), logits[chosen])

    return calibrated_predictions(ComputedRows(logits.shape, read), labels, taxonomy, temperature)


def training_prior(labels: Whole, taxonomy: Taxonomy) -> Floats:
    """Returns the share of each taxon among training pictures; a taxon without any counts as if it had one."""
    counts_T = np.bincount(taxonomy.taxon_of_output[labels], minlength=len(taxonomy.taxa)).clip(1)
    return np.asarray(counts_T / counts_T.sum())


def _rejection(
    data: str, head: FittedHead, found: Predictions, familiar_M: Flags, thresholds: FittedThresholds
) -> Rejection:
    """Follows each picture without a plant to its verdict, with the plant score of the fit that left it out."""
    least = thresholds.thresholds
    reaches_M = np.any([named(found.rank_scores[rank].score_N, getattr(least, rank)) for rank in RANKS], axis=0)
    counts = head.accepted_M.sum(), (head.accepted_M & familiar_M & reaches_M).sum()
    accepted, with_name = (share(int(count), len(reaches_M)) for count in counts)
    return Rejection(data, head.auroc, accepted, with_name)
