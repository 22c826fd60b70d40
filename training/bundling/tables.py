"""Fits all tables of a network file: what turns its logits and features into answers (`models/calibration.py`).

Letters in names: N calibration plants, one picture each; M pictures without a plant; T taxa.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import numpy as np
import numpy.typing as npt

from models.calibration import Calibration, Cutoffs, FittedOn
from models.candidates import conformal_table
from models.ranking import output_probabilities, taxon_probabilities
from models.rejection import FeatureTable
from models.session import NetworkOutput
from models.taxonomy import Taxonomy
from models.verdict import RANKS, Rank
from training.bundling.features import fit_familiarity, fit_features
from training.bundling.plant_head import FittedHead, HeadInputs, fit_plant_head
from training.bundling.thresholds import FittedThresholds, fit_thresholds
from training.evaluation.metrics import Share, share
from training.evaluation.rank_scores import rank_scores
from training.evaluation.separation import cutoff


class LabeledOutputs(msgspec.Struct, frozen=True):
    """What a network file says of some pictures, and their taxa."""

    outputs: NetworkOutput
    taxa: npt.NDArray[np.intp]
    """Position of each picture's taxon."""


class TableData(msgspec.Struct, frozen=True):
    """What the tables of a network file are fitted on."""

    taxonomy: Taxonomy
    calibration: LabeledOutputs
    """One picture of each calibration plant."""
    training: LabeledOutputs
    """Training pictures, preprocessed as in the service."""
    negatives: NetworkOutput | None
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


class Rejection(msgspec.Struct, frozen=True):
    """How well pictures without a plant are told from plants; each was left out of the fit that judges it."""

    data: str
    """What these pictures are, in words."""
    auroc: float
    """Chance that a calibration plant has a higher plant score."""
    accepted: Share
    """Pictures whose plant score reaches the cutoff, which keeps 95 % of the calibration plants."""
    named: Share
    """Pictures that the verdict names at any rank."""


class FittedTables(msgspec.Struct, frozen=True):
    """The tables of a network file and its thresholds."""

    calibration: Calibration
    thresholds: FittedThresholds
    rejection: Rejection | None
    """None without pictures that show no plant."""


def fit_tables(data: TableData, temperature: float, fixed: Mapping[Rank, float]) -> FittedTables:
    """Fits everything that follows the temperature.

    The features are fitted on training pictures. Familiarity, both cutoffs, the thresholds and the candidate sets are
    fitted on the calibration plants; the thresholds on those that both cutoffs keep, since no other plant is named.
    Calibration plants of other data promise nothing.

    Args:
        data: The outputs of the network file.
        temperature: Its temperature.
        fixed: Thresholds of some ranks, to be used in place of fitted ones.
    """
    features = fit_features(data.training.outputs.features, data.training.taxa)
    plants, taxa_NT = _head_inputs(data.calibration.outputs, features, data.taxonomy, temperature)
    familiarity = fit_familiarity(plants.confidence, plants.distance)
    familiar_N = familiarity.scores(plants.confidence, plants.distance)
    head = _fit_head(data, plants, features, temperature)
    calibration = Calibration(
        conformal=conformal_table(taxa_NT, data.calibration.taxa, data.prior_T),
        features=features,
        familiarity=familiarity,
        plant_head=head.head if head else None,
        cutoffs=Cutoffs(plant=head.cutoff if head else 0.0, familiar=cutoff(familiar_N)),
        fitted_on=_fitted_on(data),
    )
    assert calibration.cutoffs is not None
    kept_N = familiar_N >= calibration.cutoffs.familiar
    if head:
        kept_N &= plants.scores(head.head) >= head.cutoff
    scores = rank_scores(taxa_NT[kept_N], data.calibration.taxa[kept_N], data.taxonomy)
    thresholds = fit_thresholds(scores, fixed)
    if data.other_data:
        thresholds = thresholds.without_promises()
    rejection = _rejection(data, calibration, thresholds, head, temperature) if head else None
    return FittedTables(calibration, thresholds, rejection)


def training_prior(labels: npt.NDArray[np.int64], taxonomy: Taxonomy) -> npt.NDArray[np.float64]:
    """Returns the share of each taxon among training pictures; a taxon without any counts as if it had one.

    Args:
        labels: Position of each training picture's output.
        taxonomy: Gives the taxon of each output.
    """
    counts_T = np.bincount(taxonomy.taxon_of_output[labels], minlength=len(taxonomy.taxa)).clip(1)
    return np.asarray(counts_T / counts_T.sum())


def _head_inputs(
    outputs: NetworkOutput, features: FeatureTable, taxonomy: Taxonomy, temperature: float
) -> tuple[HeadInputs, npt.NDArray[np.float64]]:
    """Returns what the scores are computed from, and the calibrated probabilities of all taxa."""
    taxa_NT = taxon_probabilities(output_probabilities(outputs.logits, temperature), taxonomy)
    return HeadInputs(outputs.features, taxa_NT.max(axis=1), features.distances(outputs.features)), taxa_NT


def _fit_head(data: TableData, plants: HeadInputs, features: FeatureTable, temperature: float) -> FittedHead | None:
    if data.negatives is None:
        return None
    training, negatives = (
        _head_inputs(outputs, features, data.taxonomy, temperature)[0]
        for outputs in (data.training.outputs, data.negatives)
    )
    return fit_plant_head(training, plants, negatives, data.negative_groups)


def _rejection(
    data: TableData, calibration: Calibration, thresholds: FittedThresholds, head: FittedHead, temperature: float
) -> Rejection:
    """Follows each picture without a plant to its verdict, with the plant score of the fit that left it out."""
    assert data.negatives is not None
    assert calibration.features is not None
    assert calibration.familiarity is not None
    assert calibration.cutoffs is not None
    inputs, taxa_MT = _head_inputs(data.negatives, calibration.features, data.taxonomy, temperature)
    scores = rank_scores(taxa_MT, np.zeros(len(inputs), dtype=np.intp), data.taxonomy)
    least = thresholds.thresholds
    reaches_M = np.any([scores[rank].score_N >= getattr(least, rank) for rank in RANKS], axis=0)
    familiar_M = calibration.familiarity.scores(inputs.confidence, inputs.distance) >= calibration.cutoffs.familiar
    num_accepted, num_named = head.accepted_M.sum(), (head.accepted_M & familiar_M & reaches_M).sum()
    accepted, named = (share(int(number), len(inputs)) for number in (num_accepted, num_named))
    return Rejection(data.negatives_data, head.auroc, accepted, named)


def _fitted_on(data: TableData) -> FittedOn:
    return FittedOn(
        data=data.data,
        date=datetime.now(UTC).date().isoformat(),
        num_plants=len(data.calibration.taxa),
        num_pictures=data.num_pictures,
        num_negatives=0 if data.negatives is None else len(data.negatives.logits),
    )
