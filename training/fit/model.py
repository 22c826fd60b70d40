"""Fits what turns the outputs of a network file into answers: heads, cutoffs, thresholds, place and candidate sets.

Letters in names: N calibration plants, one picture each; M other pictures; T taxa.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from models.arrays import Flags, Positions
from models.bundle_record import Metric
from models.calibration import Calibration, ConformalTable, Cutoffs, FamiliarityTable, FittedOn, conformal_table_of
from models.figures import metric, rejection_figures
from models.metrics import Whole, share
from models.outputs import ComputedRows, Outputs, Predictions, chunks
from models.ranking import Floats, MistakenTaxa, Rank
from models.scoring import AnswerModel, decide
from models.taxonomy import Taxonomy
from training.fit.heads import (
    FittedHead,
    HeadInputs,
    distances_to_others,
    familiar_cutoff,
    fit_features,
    fit_head,
)
from training.fit.mistakes import look_alikes, mistaken_taxa
from training.fit.names import FittedThresholds, fit_thresholds
from training.fit.place import PlaceData, fit_place
from training.fit.unknown_plants import UnknownPlants, drawn_among


class TableData(msgspec.Struct, frozen=True):
    """What the tables of a network file are fitted on."""

    taxonomy: Taxonomy
    calibration: Outputs
    """One picture of each calibration plant."""
    training: Outputs
    """Training pictures, preprocessed as in the service; without logits."""
    validation: Outputs | None
    """One picture of each validation plant, at least two, for the heads and for the taxa that are often mistaken."""
    negatives: Outputs | None
    """Pictures without a plant; None makes no plant head."""
    negative_groups: Whole
    """Group of each picture without a plant, left out as a whole in cross-validation."""
    data: str
    """Data and split of the calibration pictures."""
    num_pictures: int
    """Number of calibration pictures, all of each plant."""
    proves: bool = True
    """Whether the calibration plants can prove a promise: the network was not trained on them, as it may have been if
    they are of other data, and they did not choose its checkpoint, as the validation split did."""
    negatives_data: str = "pictures without a plant"
    """What the pictures without a plant are, in words."""
    place: PlaceData | None = None
    """None if too few training pictures have a place."""
    unknown_plants: UnknownPlants | None = None
    """Plants that the bundle does not know and that do not judge it; None if none were given."""

    @property
    def trained_N(self) -> Positions:
        """Position of each training picture's taxon."""
        return self.taxonomy.taxon_of_output[self.training.labels]

    @property
    def prior_T(self) -> Floats:
        """Share of each taxon among the training pictures; a taxon without any counts as if it had one."""
        counts_T = np.bincount(self.trained_N, minlength=len(self.taxonomy.taxa)).clip(1)
        return np.asarray(counts_T / counts_T.sum())

    @property
    def fitted_on(self) -> FittedOn:
        """What the bundle says of all this."""
        return FittedOn(
            data=self.data,
            date=datetime.now(UTC).date().isoformat(),
            num_plants=len(self.calibration.logits),
            num_pictures=self.num_pictures,
            num_negatives=0 if self.negatives is None else len(self.negatives.logits),
            num_strangers=0 if self.unknown_plants is None else len(self.unknown_plants.outputs.logits),
        )


class Fitted(msgspec.Struct, frozen=True):
    """What was fitted to a network file."""

    model: AnswerModel
    thresholds: FittedThresholds
    """Those of the model, with the number of calibration plants that they name."""
    metrics: tuple[Metric, ...] = ()
    """What becomes of plants of taxa that are left out, and of pictures without a plant.

    The former are the calibration plants, each judged as if its taxon were unknown: without its outputs and without
    its mean among the features. The network itself was trained with the taxon, so with plants that are new to it the
    figures are worse, and the cutoff of familiarity was set on the same plants. Each of the latter was left out of the
    fit that judges it.
    """
    place_top1: tuple[float, float] | None = None
    """Share of the calibration plants with a place that are named right, without and with it."""


class _Seen(NamedTuple):
    """What the network and the table of distances say of some pictures."""

    found: Predictions
    features: Floats

    @classmethod
    def of(cls, outputs: Outputs, model: AnswerModel) -> "_Seen":
        """Reads the outputs for some pictures."""
        return cls(outputs.score(model), outputs.features[:])

    @property
    def inputs(self) -> HeadInputs:
        """What the heads are fitted on."""
        assert self.found.distance_N is not None
        return HeadInputs(self.features, self.found.confidence_N, self.found.distance_N)

    def scores(self, tables: Calibration) -> Predictions:
        """Adds how sure it is that each picture shows a plant, and a plant that the network knows."""
        scored = []
        for part in chunks(*self.features.shape):
            found = self.found.subset(part)
            plant_N, known_N, _ = tables.scores(self.features[part], found.confidence_N, found.distance_N)
            scored.append(replace(found, plant_N=plant_N, familiar_N=known_N))
        return Predictions.join(scored)


def fit_tables(data: TableData, temperature: float, fixed: Mapping[Rank, float]) -> Fitted:
    """Fits everything that follows the temperature.

    The features are fitted on training pictures, and both heads, with the list of taxa that are often mistaken, on
    validation plants. The cutoff of familiarity, the thresholds and the candidate sets are fitted on the calibration
    plants: the thresholds on those that both cutoffs keep, since no other plant is named, and on as many strangers as
    make every fourth plant one. `fixed` has thresholds that are not fitted.
    """
    taxonomy = data.taxonomy
    unknown_plants = data.unknown_plants
    tables = Calibration(features=fit_features(data.training.features, data.trained_N, taxonomy.genera))
    model = AnswerModel(taxonomy, temperature, calibration=tables)
    known = _Seen.of(data.calibration, model)
    validation = None if data.validation is None else _Seen.of(data.validation, model)
    rejecting = None
    if validation is not None and data.negatives is not None:
        things = _Seen.of(data.negatives, model)
        head = fit_head(validation.inputs, things.inputs, data.negative_groups)
        tables = replace(tables, plant_head=head.head)
        rejecting = head, things
    others: Predictions | None
    if validation is not None and unknown_plants is not None:
        tables, others, judged_M = _fit_known_head(tables, model, unknown_plants, validation)
    else:
        tables, others, judged_M = _fit_familiarity(tables, model, data.calibration, known, np.unique(data.trained_N))
    plants = known.scores(tables)
    cutoffs = Cutoffs(rejecting[0].cutoff if rejecting else 0.0, familiar_cutoff(_familiarity(plants), judged_M))
    kept_N = _kept(plants, cutoffs)
    named = plants.subset(kept_N)
    strangers = None
    if unknown_plants is not None and others is not None:
        kept_M = _kept(others, cutoffs)
        strangers = unknown_plants, kept_M
        drawn_M = drawn_among(unknown_plants.names, len(kept_N))
        named = Predictions.join((named, others.subset(drawn_M & kept_M)))
    mistaken_T = np.zeros(len(taxonomy.taxa), dtype=bool)
    if validation is not None and "species" not in fixed:
        mistaken_T = mistaken_taxa(validation.found, plants, len(taxonomy.taxa))
    fit_names = partial(fit_thresholds, fixed=fixed, proves=data.proves)
    thresholds = fit_names(named.rank_scores, mistaken_N=mistaken_T[named.named_N])
    prior_T = data.prior_T
    place, place_top1 = fit_place(
        data.place, data.calibration, plants, kept_N, model, prior_T=prior_T, fit_names=fit_names, strangers=strangers
    )
    model = replace(
        model,
        thresholds=thresholds.thresholds,
        promises=thresholds.promises,
        calibration=replace(
            tables, **_candidate_tables(plants, mistaken_T, prior_T), cutoffs=cutoffs, fitted_on=data.fitted_on
        ),
        place=place,
        look_alikes=look_alikes(plants, taxonomy),
        mistaken=_mistaken(thresholds, mistaken_T, taxonomy),
    )
    return Fitted(model, thresholds, tuple(_metrics(data, plants, others, rejecting, model)), place_top1)


def _metrics(
    data: TableData,
    plants: Predictions,
    others: Predictions | None,
    rejecting: tuple[FittedHead, _Seen] | None,
    model: AnswerModel,
) -> Iterator[Metric]:
    """Follows plants as if their taxa were unknown, and pictures without a plant, to their verdicts."""
    if data.unknown_plants is None and others is not None:
        about = f"{data.data}, each plant as if its taxon were unknown"
        figures = rejection_figures("familiarity", plants, others, model)
        yield metric("left_out_auroc", figures.auroc, about, len(others.rows))
        yield metric("left_out_named_species", figures.named_species, about)
    if rejecting is not None:
        head, things = rejecting
        # The plant scores are those of the fits that left them out.
        about = f"{data.negatives_data}, each left out of the fit that judges it"
        decisions = decide(replace(things.scores(model.calibration), plant_N=head.other_M), model)
        number = len(things.features)
        yield metric("things_auroc", head.auroc, about, number)
        yield metric("things_accepted", share(number - decisions.count("not_a_plant"), number), about)
        yield metric("things_named", share(int(decisions.named_N.sum()), number), about)


def _familiarity(found: Predictions) -> Floats:
    assert found.familiar_N is not None
    return found.familiar_N


def _kept(found: Predictions, cutoffs: Cutoffs) -> Flags:
    """Whether each picture is taken for a plant that the network knows."""
    kept_N = np.asarray(_familiarity(found) >= cutoffs.familiar)
    return kept_N if found.plant_N is None else kept_N & (found.plant_N >= cutoffs.plant)


def _fit_known_head(
    tables: Calibration, model: AnswerModel, unknown_plants: UnknownPlants, validation: _Seen
) -> tuple[Calibration, Predictions, Floats]:
    """Fits familiarity on validation plants and strangers of unknown genera.

    Returns the tables with it, the strangers, and the familiarity of those that set the cutoff. All of unknown genera
    are judged by heads that were fitted without their source.
    """
    seen = _Seen(unknown_plants.predictions(model), unknown_plants.outputs.features[:])
    far_M = ~unknown_plants.names.near_M
    far = unknown_plants.names.subset(far_M)
    fitted = fit_head(validation.inputs, seen.inputs.subset(far_M), far.folds(), far.source_M)
    tables = replace(tables, known_head=fitted.head)
    others = seen.scores(tables)
    _familiarity(others)[far_M] = fitted.other_M
    return tables, others, fitted.other_M


def _fit_familiarity(
    tables: Calibration, model: AnswerModel, plants: Outputs, known: _Seen, trained_T: Whole
) -> tuple[Calibration, Predictions | None, Floats]:
    """Fits familiarity on calibration plants alone, where no strangers are at hand.

    The cutoff rests on each plant without its taxon, that is without its outputs and without its mean. Returns the
    tables, these plants, and their familiarity; there are none if there is one taxon only.
    """
    taxonomy = model.taxonomy
    inputs = known.inputs
    tables = replace(tables, familiarity=FamiliarityTable(np.sort(inputs.confidence), np.sort(inputs.distance)))
    if len(trained_T) < 2 or len(taxonomy.taxa) < 2 or tables.features is None:
        return tables, None, np.zeros(0)
    taxon_N = known.found.taxon_labels_N

    def read(chosen: slice | Whole) -> Floats:
        own_NO = taxonomy.taxon_of_output == taxon_N[chosen, None]
        return np.where(own_NO, np.float32(-np.inf), plants.logits[chosen])

    found = Outputs(ComputedRows(plants.logits.shape, read), labels=plants.labels).score(model)
    distance_N = distances_to_others(tables.features, trained_T, known.features, taxon_N)
    others = _Seen(replace(found, distance_N=distance_N), known.features).scores(tables)
    return tables, others, _familiarity(others)


def _candidate_tables(found: Predictions, mistaken_T: Flags, prior_T: Floats) -> dict[str, ConformalTable]:
    """Makes the tables of candidate sets: one, or two if some taxa are often mistaken."""
    own_N = mistaken_T[found.taxon_labels_N]
    groups = {"conformal": ~own_N} | ({"conformal_mistaken": own_N} if mistaken_T.any() else {})
    return {
        name: conformal_table_of(found.right_N[chosen], found.taxon_labels_N[chosen], prior_T)
        for name, chosen in groups.items()
    }


def _mistaken(thresholds: FittedThresholds, mistaken_T: Flags, taxonomy: Taxonomy) -> MistakenTaxa | None:
    fitted = thresholds.mistaken
    if fitted is None:
        return None
    ids = tuple(taxonomy.taxa[position].taxon_id for position in np.flatnonzero(mistaken_T))
    return MistakenTaxa(ids, fitted.threshold, fitted.promise)
