"""The part `calibration` of a bundle: what turns logits and features into answers, fitted on calibration pictures.

Features: two scores, whether a picture shows a plant, and whether it shows a plant that the network knows. Both rest on
the relative Mahalanobis++ distance (arXiv 2505.18032): features divided by their length, reduced by PCA; the distance
to the nearest taxon under one shared covariance, minus the distance to the whole under its own.

Candidate sets: the taxa that include the right one as often as was asked for (split conformal prediction). The
conformity of a taxon is its probability divided by its share of the training pictures (PAS, arXiv 2507.06867), so that
sets do not lack the rare taxa. The p-value of a taxon is the share of the calibration plants whose right taxon conforms
no better. The set for a coverage of 1 - alpha holds the taxa with a p-value above alpha, so a set of higher coverage
contains every set of lower coverage.

The file is one `.npz` of plain arrays, named `precision/table/field`, so that it is read without unpickling anything.

Letters in names: B pictures (of one plant), F features, D dimensions after PCA, T taxa, N calibration plants or
pictures.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_type_hints

import msgspec
import numpy as np

from models.arrays import Doubles, Flags, Integers, Positions, Singles, read_arrays
from models.errors import BundleError, DataError
from models.ranking import Floats, Probability

CALIBRATION_PART: Final = "calibration"
CALIBRATION_FILE: Final = "calibration.npz"
CoverageKind = Literal["marginal", "macro"]


class FeatureTable(msgspec.Struct, frozen=True, dict=True):
    """Where the pictures of each known taxon lie among the features."""

    center_F: Singles
    """Mean of the features of length 1."""
    basis_FD: Singles
    """Principal components."""
    whole_D: Singles
    """Scale of each component after which the covariance of all pictures is the identity."""
    within_DD: Singles
    """Projection of the components after which the covariance within taxa is the identity."""
    mean_TD: Singles
    """Mean of each taxon after `within_DD`; taxa without pictures are left out, so T may be smaller."""

    def distances(self, features_BF: Floats) -> Doubles:
        """Relative Mahalanobis++ distance of each picture; shape (num_pictures,), larger is stranger."""
        reduced_BD = (unit_length(features_BF) - self.center_F) @ self.basis_FD
        within_BD = reduced_BD @ self.within_DD
        to_taxa_BT = self._squared_lengths - np.float32(2) * (within_BD @ self.mean_TD.T)
        to_nearest_B = to_taxa_BT.min(axis=1) + (within_BD**2).sum(axis=1)
        return np.asarray(to_nearest_B - ((reduced_BD * self.whole_D) ** 2).sum(axis=1), dtype=np.float64)

    @cached_property
    def _squared_lengths(self) -> Singles:
        """Squared length of each mean; cached, since it takes longer than everything else."""
        return np.asarray((self.mean_TD**2).sum(axis=1))


class LogisticHead(msgspec.Struct, frozen=True):
    """A logistic regression on a picture's features and scores: of plants, or of plants that the network knows."""

    weight_F: Singles
    """Weights of the features of length 1."""
    weight_confidence: float
    """Weight of the log-odds of the likeliest taxon."""
    weight_distance: float
    """Weight of the relative distance."""
    bias: float

    def scores(self, features_BF: Floats, confidence_B: Floats, distance_B: Floats) -> Doubles:
        """Probability that each picture shows such a plant, in [0, 1]; shape (num_pictures,)."""
        odds_B = (
            unit_length(features_BF) @ self.weight_F
            + self.weight_confidence * log_odds(confidence_B)
            + self.weight_distance * np.asarray(distance_B, dtype=np.float64)
            + self.bias
        )
        return np.asarray(1 / (1 + np.exp(-np.clip(odds_B, -500, 500))), dtype=np.float64)


class FamiliarityTable(msgspec.Struct, frozen=True):
    """How confident and how near the pictures of known plants are; fitted on calibration pictures."""

    confidence_N: Doubles
    """Probability of the likeliest taxon, ascending."""
    distance_N: Doubles
    """Relative distance, ascending."""

    def scores(self, confidence_B: Floats, distance_B: Floats) -> Doubles:
        """Gives how familiar each picture is: the mean of two ranks among the calibration pictures, in [0, 1]."""
        surer = np.searchsorted(self.confidence_N, confidence_B, side="right") / len(self.confidence_N)
        nearer = 1 - np.searchsorted(self.distance_N, distance_B, side="left") / len(self.distance_N)
        return (surer + nearer) / 2


def unit_length(features_BF: Floats) -> Singles:
    """Divides each picture's features by their length; float32, since the tables are, and twice as fast."""
    features = np.asarray(features_BF, dtype=np.float32)
    return np.asarray(features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12))


def log_odds(probability: Floats) -> Doubles:
    """Log-odds of probabilities, kept within those of 1e-6 and 1 - 1e-6."""
    kept = np.clip(np.asarray(probability, dtype=np.float64), 1e-6, 1 - 1e-6)
    return np.log(kept / (1 - kept))


class ConformalTable(msgspec.Struct, frozen=True, dict=True):
    """The calibration plants that p-values count; at least one."""

    prior_T: Doubles
    """Share of each taxon among the training pictures, above 0."""
    conformity_N: Doubles
    """Conformity of the right taxon of each calibration plant, ascending."""
    macro_weight_N: Doubles
    """Weight of each of these plants for macro coverage; the plants of a taxon share 1 / (taxa with such plants)."""
    num_plants_T: Integers
    """Number of calibration plants of each taxon. Marginal coverage says little about a taxon without any, and macro
    coverage says nothing."""

    def p_values(self, taxa_BT: Floats, kind: CoverageKind) -> Doubles:
        """Gives the p-value of each taxon being the right one, in [0, 1]; arguments as in `candidate_set`.

        A single picture counts itself among the calibration plants: as one plant for marginal coverage, and with the
        largest weight for macro coverage (arXiv 2606.28598). Several pictures of one plant depend on each other, so
        their p-values are combined as twice the mean, which is valid under any dependence (Vovk and Wang 2020).
        """
        no_better_BT = np.searchsorted(self.conformity_N, taxa_BT / self.prior_T, side="right")
        if kind == "marginal":
            p_values_BT = (no_better_BT + 1) / (len(self.conformity_N) + 1)
        else:
            summed = np.concatenate(([0.0], np.cumsum(self.macro_weight_N)))
            p_values_BT = summed[no_better_BT] + self.macro_weight_N.max()
        combined_T = p_values_BT[0] if len(p_values_BT) == 1 else 2 * p_values_BT.mean(axis=0)
        return np.asarray(np.minimum(combined_T, 1.0))


def conformal_table_of(right_N: Floats, labels_N: Positions, prior_T: Floats) -> ConformalTable:
    """Makes the table from calibration plants, at least one, that the network was not trained on.

    Args:
        right_N: Calibrated probability of the right taxon on one picture of each plant. Small probabilities must not be
            cut, or sets of rare taxa come out too small.
        labels_N: Position of each plant's taxon.
        prior_T: Share of each taxon among the training pictures, above 0.
    """
    conformity_N = right_N / prior_T[labels_N]
    _, taxon_N, counts = np.unique(labels_N, return_inverse=True, return_counts=True)
    order = np.argsort(conformity_N, kind="stable")
    return ConformalTable(
        prior_T=np.asarray(prior_T, dtype=np.float64),
        conformity_N=np.asarray(conformity_N[order], dtype=np.float64),
        macro_weight_N=1.0 / (len(counts) * counts[taxon_N[order]]),
        num_plants_T=np.bincount(labels_N, minlength=len(prior_T)),
    )


def candidate_set(
    table: ConformalTable,
    taxa_BT: Floats,
    coverage: float,
    kind: CoverageKind = "marginal",
    of_mistaken: tuple[ConformalTable, Flags] | None = None,
) -> Positions:
    """Finds the taxa that may be the right one.

    Args:
        table: The calibration plants.
        taxa_BT: Calibrated probabilities of all taxa on each picture of one plant, shape (num_pictures, num_taxa).
        coverage: How often the set shall include the right taxon, in (0, 1).
        kind: Whether that holds for the mean plant ("marginal") or for the mean taxon ("macro").
        of_mistaken: The calibration plants of the taxa that are often mistaken, and whether each taxon is one: then the
            coverage holds for these and for the others (Ding et al. 2023, with two clusters).

    Returns:
        Positions of taxa, ascending. If no p-value is high enough, the set holds the taxon that conforms best.
    """
    p_values_T = table.p_values(taxa_BT, kind)
    limit = 1.0 - coverage
    if of_mistaken is not None:
        p_values_T = np.where(of_mistaken[1], of_mistaken[0].p_values(taxa_BT, kind), p_values_T)
    chosen = np.flatnonzero(p_values_T > limit)
    if chosen.size:
        return chosen
    conformity_T = (taxa_BT / table.prior_T).mean(axis=0)
    return np.array([np.lexsort((-conformity_T, -p_values_T))[0]])


class Cutoffs(msgspec.Struct, frozen=True):
    """Scores below which the verdict names no plant."""

    plant: Probability = 0.0
    """Least score of `plant_head` for a plant, which 95 % of the validation plants or more reach; 0 accepts all."""
    familiar: Probability = 0.0
    """Least familiarity of a plant that the network knows, which 85 to 95 % of the calibration plants reach
    (`familiar_cutoff`); 0 accepts every picture."""


class FittedOn(msgspec.Struct, frozen=True):
    """The pictures that the tables of a network were fitted on."""

    data: str
    """Data and split, in words."""
    date: str
    """Day of the fit, UTC, ISO 8601."""
    num_plants: int
    """Number of calibration plants; pictures of one plant count once."""
    num_pictures: int
    """Number of calibration pictures."""
    num_negatives: int = 0
    """Number of pictures without a plant that the plant head was fitted on."""
    num_strangers: int = 0
    """Number of pictures of unknown plants that familiarity was fitted on."""


class Calibration(msgspec.Struct, frozen=True):
    """The tables of one network file; those that were not fitted are None.

    `features` is needed by the heads and by `familiarity`.
    """

    conformal: ConformalTable | None = None
    conformal_mistaken: ConformalTable | None = None
    """That of the taxa that are often mistaken (`MistakenTaxa`), which the other one then lacks."""
    features: FeatureTable | None = None
    familiarity: FamiliarityTable | None = None
    """None if there is a `known_head`, which was fitted on unknown plants too."""
    plant_head: LogisticHead | None = None
    """Tells plants from other things."""
    known_head: LogisticHead | None = None
    """Tells plants that the network knows from other plants; bundles with it have format 5."""
    cutoffs: Cutoffs | None = None
    fitted_on: FittedOn | None = None

    @property
    def uncalibrated_taxa(self) -> Positions:
        """Positions of the taxa without calibration plants for candidate sets."""
        tables = [table.num_plants_T for table in (self.conformal, self.conformal_mistaken) if table is not None]
        return np.flatnonzero(np.sum(tables, axis=0) == 0)

    def scores(
        self, features_BF: Floats, confidence_B: Doubles, distance_B: Doubles | None = None
    ) -> tuple[Doubles | None, Doubles | None, Doubles | None]:
        """Returns how sure it is that each picture shows a plant, and a known plant, and its relative distance.

        The first two are in [0, 1]. Without the table for it, each is None. A caller that knows the distance passes it.
        """
        if distance_B is None:
            if self.features is None:
                return None, None, None
            distance_B = self.features.distances(features_BF)
        plant_B, known_B = (
            None if head is None else head.scores(features_BF, confidence_B, distance_B)
            for head in (self.plant_head, self.known_head)
        )
        if known_B is None and self.familiarity is not None:
            known_B = self.familiarity.scores(confidence_B, distance_B)
        return plant_B, known_B, distance_B


def write_calibration(path: Path, calibrations: Mapping[str, Calibration]) -> None:
    """Writes the tables of all network files of a bundle."""
    arrays: dict[str, Any] = {
        f"{precision}/{table}/{field}": np.asarray(getattr(values, field))
        for precision, calibration in calibrations.items()
        for table in Calibration.__struct_fields__
        if (values := getattr(calibration, table)) is not None
        for field in values.__struct_fields__
    }
    np.savez(path, allow_pickle=False, **arrays)


def read_calibration(path: Path) -> dict[str, Calibration]:
    """Reads the tables of all network files of a bundle.

    Raises:
        BundleError: The file cannot be read, or a table lacks a field, contradicts itself or has a value that it cannot
            have. Unknown tables and fields are ignored.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, array in read_arrays(path).items():
        precision, table, field = name.split("/", 2) if name.count("/") == 2 else (name, "", "")
        found.setdefault(precision, {}).setdefault(table, {})[field] = array if array.ndim else array.item()
    kinds = {table: get_args(hint)[0] for table, hint in get_type_hints(Calibration).items()}
    try:
        return {
            precision: Calibration(**{table: _table(kinds[table], tables[table]) for table in kinds if table in tables})
            for precision, tables in found.items()
        }
    except (msgspec.ValidationError, DataError) as error:
        raise BundleError.unreadable(path, error) from error


def _table(kind: type[msgspec.Struct], fields: dict[str, Any]) -> Any:
    """Makes a table of finite numbers; the letters after an array's name are its shape, and say which lengths agree.

    Raises:
        DataError: A number is not finite, an array is empty, or its shape is another.
        msgspec.ValidationError: A field is missing, or has another type or a value that it cannot have.
    """
    known = {name: fields[name] for name in kind.__struct_fields__ if name in fields}
    table = msgspec.convert(known, kind, dec_hook=_array)
    sizes = dict[str, int]()
    for name, value in known.items():
        letters = name.rpartition("_")[2] if isinstance(value, np.ndarray) else ""
        if not isinstance(value, str) and not np.isfinite(value).all():
            raise DataError(f"a number of {name} is not finite")
        if len(letters) != np.ndim(value) or not all(
            sizes.setdefault(letter, size) == size > 0 for letter, size in zip(letters, np.shape(value), strict=True)
        ):
            raise DataError(f"the shape of {name} does not fit its table", value=np.shape(value), limit=str(sizes))
    return table


def _array(kind: Any, value: object) -> object:
    """Returns an array, if its numbers are of the kind that the field has."""
    (number,) = get_args(get_args(kind)[1])
    if isinstance(value, np.ndarray) and not np.can_cast(value.dtype, number, "same_kind"):
        raise ValueError(f"Expected `{number.__name__}`, got `{value.dtype}`")
    return value
