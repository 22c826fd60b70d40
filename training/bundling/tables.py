"""Fits what turns the logits and features of a network file into answers: its temperature and its tables.

Letters in names: N calibration plants, one picture each; M pictures without a plant; T taxa.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import numpy as np
from msgspec.structs import replace

from models.answer import AnswerModel, decide
from models.arrays import Flags
from models.calibration import (
    Calibration,
    ConformalTable,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    FittedOn,
    LogisticHead,
    conformal_table_of,
)
from models.metrics import Share, Whole, share
from models.ranking import Floats, MistakenTaxa, Promises, Rank
from models.taxonomy import Taxonomy
from training.bundling.look_alikes import look_alikes
from training.bundling.place import FittedPlace, PlaceData, fit_place
from training.bundling.rejection import (
    FittedHead,
    HeadInputs,
    distances_to_others,
    familiar_cutoff,
    fit_features,
    fit_head,
)
from training.bundling.strangers import Strangers, drawn_among
from training.bundling.thresholds import MIN_NAMED, FittedThresholds, fit_thresholds, mistaken_taxa
from training.evaluation.predictions import ComputedRows, Outputs, Predictions, Rows, score_pictures
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
    validation: LabeledOutputs | None
    """One picture of each validation plant, at least two, for the heads and for the taxa that are often mistaken."""
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
    strangers: Strangers | None = None
    """Plants that the bundle does not know and that do not judge it; None if none were given."""


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
    mistaken: MistakenTaxa | None = None
    """None if no taxon is often mistaken."""
    look_alikes: dict[str, tuple[str, ...]] = {}
    """Taxon id -> ids of the taxa that it is often taken for."""


class _Familiarity(msgspec.Struct, frozen=True):
    """What tells plants that the network knows from other plants: a head that saw strangers, or else a table."""

    cutoff: float
    known_N: Floats
    """Familiarity of the calibration plants."""
    others_M: Floats
    """Familiarity of the strangers, or of the calibration plants as if their taxa were unknown."""
    table: FamiliarityTable | None = None
    head: LogisticHead | None = None

    def scores(self, pictures: HeadInputs) -> Floats:
        """Returns the familiarity of each picture."""
        if self.head is not None:
            return pictures.scores(self.head)
        assert self.table is not None
        return self.table.scores(pictures.confidence, pictures.distance)


def fit_tables(data: TableData, temperature: float, fixed: Mapping[Rank, float]) -> FittedTables:
    """Fits everything that follows the temperature.

    The features are fitted on training pictures, and both heads, with the list of taxa that are often mistaken, on
    validation plants. The cutoff of familiarity, the thresholds and the candidate sets are fitted on the calibration
    plants: the thresholds on those that both cutoffs keep, since no other plant is named, and on as many strangers as
    make every fourth plant one. Calibration plants of other data or of the validation split promise nothing. `fixed`
    has thresholds that are not fitted.
    """
    taxonomy = data.taxonomy
    table = fit_features(data.training_features, taxonomy.taxon_of_output[data.training_labels], taxonomy.genera)
    model = AnswerModel(taxonomy, temperature, calibration=Calibration(features=table))
    found, known = _see(model, data.calibration.outputs, data.calibration.labels)
    validation = None if data.validation is None else _see(model, data.validation.outputs, data.validation.labels)
    head = things = strangers = without_taxa = left_out = rejection = None
    if data.negatives is not None and validation is not None:
        things = _see(model, data.negatives)
        head = fit_head(validation[1], things[1], data.negative_groups)
    if data.strangers is not None and validation is not None:
        found_M = data.strangers.predictions(model)
        strangers = found_M, _head_inputs(found_M, data.strangers.outputs)
        familiar = _fit_known_head(data.strangers, strangers[1], known, validation[1])
    else:
        without_taxa = _as_strangers(data, known, table, model)
        familiar = _fit_familiarity(known, None if without_taxa is None else without_taxa[1])
    kept_N = (familiar.known_N >= familiar.cutoff) & _accepts(head, known)
    plants = found.subset(kept_N)
    if data.strangers is not None and strangers is not None:
        drawn_M = drawn_among(data.strangers.names, len(found.rows))
        kept_M = drawn_M & (familiar.others_M >= familiar.cutoff) & _accepts(head, strangers[1])
        plants = Predictions.join((plants, strangers[0].subset(kept_M)))
    mistaken_T = _mistaken_taxa(validation, found, "species" in fixed, len(taxonomy.taxa))
    thresholds = fit_thresholds(plants.rank_scores, fixed, mistaken_T[plants.named_N])
    place = _fit_place(data, kept_N, temperature, fixed)
    if data.other_data or data.is_validation:
        thresholds = thresholds.without_promises()
        if place is not None:
            place = replace(place, rule=replace(place.rule, promises=Promises()))
    mistaken = _mistaken(thresholds, mistaken_T, taxonomy)
    cutoffs = Cutoffs(head.cutoff if head else 0.0, familiar.cutoff)
    limits = AnswerModel(
        taxonomy, temperature, thresholds.thresholds, calibration=Calibration(cutoffs=cutoffs), mistaken=mistaken
    )
    if without_taxa is not None:
        left_out = _left_out(data.data, familiar, head, without_taxa, limits)
    if head is not None and things is not None:
        judged = replace(things[0], plant_N=head.other_M, familiar_N=familiar.scores(things[1]))
        rejection = _rejection(data.negatives_data, head, judged, limits)
    calibration = Calibration(
        **_candidate_tables(found, mistaken_T, data.prior_T),
        features=table,
        familiarity=familiar.table,
        plant_head=head.head if head else None,
        known_head=familiar.head,
        cutoffs=cutoffs,
        fitted_on=_fitted_on(data),
    )
    return FittedTables(calibration, thresholds, rejection, left_out, place, mistaken, look_alikes(found, taxonomy))


def _mistaken(thresholds: FittedThresholds, mistaken_T: Flags, taxonomy: Taxonomy) -> MistakenTaxa | None:
    fitted = thresholds.mistaken
    if fitted is None:
        return None
    ids = tuple(taxonomy.taxa[position].taxon_id for position in np.flatnonzero(mistaken_T))
    return MistakenTaxa(ids, fitted.threshold, fitted.promise)


def _accepts(head: FittedHead | None, pictures: HeadInputs) -> Flags:
    """Whether each picture is taken for a plant; all are without a plant head."""
    return np.ones(len(pictures), dtype=bool) if head is None else head.accepts(pictures)


def _fit_familiarity(known: HeadInputs, without_taxa: HeadInputs | None) -> _Familiarity:
    """Fits familiarity where no strangers are at hand, on calibration plants alone."""
    table = FamiliarityTable(np.sort(known.confidence), np.sort(known.distance))
    known_N, others_M = table.scores(known.confidence, known.distance), np.zeros(0)
    if without_taxa is not None:
        others_M = table.scores(without_taxa.confidence, without_taxa.distance)
    return _Familiarity(familiar_cutoff(known_N, others_M), known_N, others_M, table=table)


def _fit_known_head(strangers: Strangers, seen: HeadInputs, known: HeadInputs, validation: HeadInputs) -> _Familiarity:
    """Fits familiarity on validation plants and strangers of unknown genera.

    Its cutoff rests on calibration plants, and on strangers by heads that were fitted without their source.
    """
    far_M = ~strangers.names.near_M
    far = strangers.names.subset(far_M)
    fitted = fit_head(validation, seen.subset(far_M), far.folds(), far.source_M)
    others_M, known_N = seen.scores(fitted.head), known.scores(fitted.head)
    others_M[far_M] = fitted.other_M
    return _Familiarity(familiar_cutoff(known_N, fitted.other_M), known_N, others_M, head=fitted.head)


def _candidate_tables(found: Predictions, mistaken_T: Flags, prior_T: Floats) -> dict[str, ConformalTable]:
    """Makes the tables of candidate sets: one, or two if some taxa are often mistaken."""
    own_N = mistaken_T[found.taxon_labels_N]
    groups = {"conformal": ~own_N} | ({"conformal_mistaken": own_N} if mistaken_T.any() else {})
    return {
        name: conformal_table_of(found.right_N[chosen], found.taxon_labels_N[chosen], prior_T)
        for name, chosen in groups.items()
    }


def _mistaken_taxa(
    validation: tuple[Predictions, HeadInputs] | None, calibration: Predictions, is_fixed: bool, num_taxa: int
) -> Flags:
    """Finds the taxa that are often mistaken, shape (num_taxa,); none if one of the groups has too few plants."""
    none_T = np.zeros(num_taxa, dtype=bool)
    if validation is None or is_fixed:
        return none_T
    found_T = mistaken_taxa(validation[0].named_N, validation[0].rank_scores["species"], num_taxa)
    groups = found_T[calibration.named_N], found_T[calibration.taxon_labels_N]
    least = 2 * MIN_NAMED  # plants of a group; with fewer, a promise would be lost that all plants together can prove
    enough = all(least <= own_N.sum() <= len(own_N) - least for own_N in groups)
    return found_T if enough else none_T


def _left_out(
    data: str,
    familiar: _Familiarity,
    head: FittedHead | None,
    without_taxa: tuple[Predictions, HeadInputs],
    limits: AnswerModel,
) -> LeftOutPlants:
    """Judges the table of familiarity by calibration plants as if their taxa were unknown."""
    found, inputs = without_taxa
    plant_N = None if head is None else inputs.scores(head.head)
    decisions = decide(replace(found, plant_N=plant_N, familiar_N=familiar.others_M), limits)
    named = share(decisions.count("species"), len(found.rows))
    return LeftOutPlants(data, auroc(familiar.known_N, familiar.others_M), named)


def _fitted_on(data: TableData) -> FittedOn:
    return FittedOn(
        data=data.data,
        date=datetime.now(UTC).date().isoformat(),
        num_plants=len(data.calibration.labels),
        num_pictures=data.num_pictures,
        num_negatives=0 if data.negatives is None else len(data.negatives.logits),
        num_strangers=0 if data.strangers is None else len(data.strangers.outputs.logits),
    )


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


def _see(model: AnswerModel, outputs: Outputs, labels: Whole | None = None) -> tuple[Predictions, HeadInputs]:
    """What the network and the table of distances say of some pictures."""
    found = outputs.score(model, labels)
    return found, _head_inputs(found, outputs)


def _head_inputs(found: Predictions, outputs: Outputs) -> HeadInputs:
    assert found.distance_N is not None
    return HeadInputs(outputs.features[:], found.confidence_N, found.distance_N)


def _as_strangers(
    data: TableData, known: HeadInputs, table: FeatureTable, model: AnswerModel
) -> tuple[Predictions, HeadInputs] | None:
    """What is seen of each calibration plant without its taxon, that is without its outputs and without its mean.

    None if there is one taxon only.
    """
    logits, labels, taxonomy = data.calibration.outputs.logits, data.calibration.labels, data.taxonomy
    trained_taxa_T = np.unique(taxonomy.taxon_of_output[data.training_labels])
    if len(trained_taxa_T) < 2 or len(taxonomy.taxa) < 2:
        return None
    found = without_taxon(logits, labels, model)
    distance_N = distances_to_others(table, trained_taxa_T, known.features, taxonomy.taxon_of_output[labels])
    return found, HeadInputs(known.features, found.confidence_N, distance_N)


def without_taxon(logits: Rows, labels: Whole, model: AnswerModel) -> Predictions:
    """What the network says of each picture without the outputs of its taxon."""
    taxon_of_output = model.taxonomy.taxon_of_output
    taxon_N = taxon_of_output[labels]

    def read(chosen: slice | Whole) -> Floats:
        own_NO = taxon_of_output == taxon_N[chosen, None]
        return np.where(own_NO, np.float32(-np.inf), logits[chosen])

    return score_pictures(ComputedRows(logits.shape, read), labels, model)


def training_prior(labels: Whole, taxonomy: Taxonomy) -> Floats:
    """Returns the share of each taxon among training pictures; a taxon without any counts as if it had one."""
    counts_T = np.bincount(taxonomy.taxon_of_output[labels], minlength=len(taxonomy.taxa)).clip(1)
    return np.asarray(counts_T / counts_T.sum())


def _rejection(data: str, head: FittedHead, judged: Predictions, limits: AnswerModel) -> Rejection:
    """Follows each picture without a plant to its verdict, with the plant score of the fit that left it out."""
    counts = (head.other_M >= head.cutoff).sum(), decide(judged, limits).named_N.sum()
    accepted, with_name = (share(int(count), len(judged.rows)) for count in counts)
    return Rejection(data, head.auroc, accepted, with_name)
