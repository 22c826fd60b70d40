"""Fits the part `place` of a bundle on the coordinates and dates of training pictures, and the rule that uses it.

One half of the calibration plants with a place chooses the rule: the weight and the floor at which the right taxon is
likeliest. On the other half the temperature, thresholds, promises and candidate sets that hold with a place are fitted.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from itertools import product
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from models.answer import AnswerModel, add_place
from models.arrays import Columns, Flags
from models.calibration import ConformalTable, conformal_table_of
from models.metrics import Whole
from models.place import SIDES_KM, CellCounts, PlacePrior, PlaceRule, Where, band_at, cells_at
from models.ranking import Floats, Rank, Thresholds
from models.taxonomy import Taxonomy
from training.bundling.temperature import fit_temperature
from training.bundling.thresholds import FittedThresholds, fit_thresholds
from training.dataset.manifest import Manifest
from training.evaluation.predictions import ComputedRows, Predictions, Rows, chosen_rows, score_pictures

LEAST_RECORDS: Final = 1_000
"""Training pictures with a place that a prior needs."""
LEAST_PLANTS: Final = 1_000
"""Calibration plants with a place that a rule needs, in both halves."""
WEIGHTS: Final = (0.5, 1.0)
FLOORS: Final = (0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
MOST_LOST: Final = 0.02
"""Largest fall of top-1 if every plant stood at the place of another one far away, where most do not grow."""
TRUSTS: Final = (10.0, 30.0, 100.0, 300.0, 1000.0)
_MOST_PLANTS: Final = 5_000  # on which weight and floor are chosen
_FAR_KM: Final = 1000.0
_EARTH_KM: Final = 6371.0
_HELD_OUT: Final = 10  # every tenth place is held out while `trust` is chosen


class Records(Columns, frozen=True):
    """Pictures with a place."""

    taxon_N: Whole
    latitude_N: Floats
    longitude_N: Floats
    month_N: Whole
    """1 to 12; 0 if the day is unknown."""

    def __len__(self) -> int:
        return len(self.taxon_N)

    def places(self) -> Iterator[Where]:
        """Yields the place of each picture; of its day only the month is known."""
        for latitude, longitude, month in zip(self.latitude_N, self.longitude_N, self.month_N, strict=True):
            yield Where(float(latitude), float(longitude), date(2000, int(month), 15) if month else None)


def records_of(manifest: Manifest, rows: Whole) -> tuple[Records, Flags]:
    """Returns the pictures of these rows that have a place, and which of the rows these are."""
    table = manifest.table.select(["latitude", "longitude", "taken_on"]).take(rows)
    latitude, longitude = (
        table[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in ("latitude", "longitude")
    )
    month = months_of(table["taken_on"].to_numpy(zero_copy_only=False))
    has_place = np.isfinite(latitude) & np.isfinite(longitude)
    taxa = manifest.taxonomy.taxon_of_output[manifest.labels[rows]]
    found = Records(np.asarray(taxa, np.int64), latitude, longitude, month)
    return found.subset(has_place), has_place


def months_of(days_N: npt.NDArray[np.datetime64]) -> Whole:
    """Returns the month of each day, 1 to 12; 0 if the day is unknown."""
    months_N = days_N.astype("datetime64[M]")
    return np.where(np.isnat(months_N), 0, months_N.astype(np.int64) % 12 + 1)


def fit_prior(records: Records, num_taxa: int) -> PlacePrior:
    """Counts the records, and chooses how far a cell is trusted by the likelihood of held-out records."""
    held_out = cells_at(records.latitude_N, records.longitude_N, SIDES_KM[0] / 10) % _HELD_OUT == 0
    kept, tested = records.subset(~held_out), records.subset(held_out)
    chosen = TRUSTS[2]
    if len(kept) and len(tested):
        draft = count_records(kept, num_taxa, chosen)
        world_T = np.maximum(draft.counts, 1) / max(draft.counts.sum(), 1)
        sample = tested.subset(np.random.default_rng(0).permutation(len(tested))[:2000])

        def likelihood(trust: float) -> float:
            """Mean log probability of the right taxon by place alone."""
            prior, total = replace(draft, trust=trust), 0.0
            for where, taxon in zip(sample.places(), sample.taxon_N, strict=True):
                score_T = world_T * np.exp(prior.log_ratios(where))
                total += float(np.log(score_T[taxon] / score_T.sum()))
            return total / len(sample)

        chosen = max(TRUSTS, key=likelihood)
    return count_records(records, num_taxa, chosen)


def count_records(records: Records, num_taxa: int, trust: float) -> PlacePrior:
    """Returns the prior with these records."""
    levels = []
    for side_km in SIDES_KM:
        cell_N = cells_at(records.latitude_N, records.longitude_N, side_km)
        pair, count_E = np.unique(cell_N * num_taxa + records.taxon_N, return_counts=True)
        cell_C, start_C = np.unique(pair // num_taxa, return_index=True)
        levels.append(
            CellCounts(
                cell_C.astype(np.int32),
                start_C.astype(np.int64),
                (pair % num_taxa).astype(np.int32),
                count_E.astype(np.int32),
            )
        )
    month_TBM = np.zeros((num_taxa, 3, 12), np.int32)
    dated = records.month_N > 0
    band_N = np.array([band_at(latitude) for latitude in records.latitude_N[dated]], np.int64)
    np.add.at(month_TBM, (records.taxon_N[dated], band_N, records.month_N[dated] - 1), 1)
    return PlacePrior(tuple(levels), month_TBM, trust)


def choose_rule(measure: Callable[[PlaceRule | None], tuple[Floats, float]]) -> PlaceRule | None:
    """Chooses the weight and the floor; None if none helps.

    `measure` gives the loss of each plant with a rule (None for no place), and top-1 with places far away. The rule
    with the smallest mean loss is chosen of those that cost at most `MOST_LOST` of that, and whose gain over no place
    is more than its standard error.
    """
    alone_N, alone = measure(None)
    best, most = None, 0.0
    for weight, floor in product(WEIGHTS, FLOORS):
        rule = PlaceRule(weight, floor, 1.0, Thresholds())
        loss_N, exchanged = measure(rule)
        gain_N = alone_N - loss_N
        standard_error = gain_N.std() / np.sqrt(len(gain_N))
        if gain_N.mean() > max(most, standard_error) and exchanged >= alone - MOST_LOST:
            best, most = rule, float(gain_N.mean())
    return best


def find_rule(prior: PlacePrior, logits: Rows, labels_N: Whole, here: Records, model: AnswerModel) -> PlaceRule | None:
    """Chooses the rule on plants that stand at their places, and then far away; None if none helps."""
    own, at_places = logits[:], [ratios(prior, records)[:] for records in (here, far_away(here))]

    def measure(rule: PlaceRule | None) -> tuple[Floats, float]:
        rows = [own if rule is None else placed_rows(own, each, rule, model) for each in at_places]
        found, elsewhere = (score_pictures(each, labels_N, model) for each in rows)
        return -np.log(np.maximum(found.right_N, 1e-12)), float(elsewhere.top_k_hits(1).mean())

    return choose_rule(measure)


def far_away(here: Records) -> Records:
    """Moves each plant to the place and month of another one, at least 1,000 km away if there is any."""
    random, other_N = np.random.default_rng(0), np.zeros(len(here), np.int64)
    latitude_N, longitude_N = np.radians(here.latitude_N), np.radians(here.longitude_N)
    across_N = np.cos(latitude_N)
    unit_N3 = np.stack((across_N * np.cos(longitude_N), across_N * np.sin(longitude_N), np.sin(latitude_N)), axis=1)
    for plant in range(len(here)):
        far = np.flatnonzero(unit_N3 @ unit_N3[plant] < np.cos(_FAR_KM / _EARTH_KM))
        other_N[plant] = random.choice(far) if len(far) else random.integers(len(here))
    return replace(here.subset(other_N), taxon_N=here.taxon_N)


class PlaceData(msgspec.Struct, frozen=True):
    """Where the calibration plants were photographed."""

    prior: PlacePrior
    """Fitted on training pictures."""
    records: Records
    """Of the plants that have a place."""
    has_place_N: Flags
    """Which of the plants these are."""


class FittedPlace(msgspec.Struct, frozen=True):
    """The rule of one network, and its table for candidate sets."""

    prior: PlacePrior
    rule: PlaceRule
    conformal: ConformalTable
    num_plants: int
    """Calibration plants with a place that it was fitted on; others have chosen the rule."""
    top1: tuple[float, float]
    """Share of these named right as the likeliest taxon, without and with place."""


def fit_place(
    data: PlaceData,
    logits_NO: Rows,
    labels_N: Whole,
    kept_N: Flags,
    *,
    taxonomy: Taxonomy,
    temperature: float,
    prior_T: Floats,
    fixed: Mapping[Rank, float],
) -> FittedPlace | None:
    """Chooses and fits the rule on calibration plants; None if too few have a place, or if place does not help.

    `kept_N` says which plants reach the cutoffs, `prior_T` is the share of each taxon among the training pictures, and
    `fixed` has thresholds that are not fitted.
    """
    model = AnswerModel(taxonomy, temperature)
    records, with_place = data.records, np.flatnonzero(data.has_place_N)
    if len(records) < LEAST_PLANTS:
        return None
    some = np.random.default_rng(0).permutation(np.arange(0, len(records), 2))[:_MOST_PLANTS]
    plants = with_place[some]
    best = find_rule(data.prior, chosen_rows(logits_NO, plants), labels_N[plants], records.subset(some), model)
    if best is None:
        return None
    others = np.arange(1, len(records), 2)
    plants = with_place[others]
    logits, labels = chosen_rows(logits_NO, plants), labels_N[plants]
    rows = placed_rows(logits, ratios(data.prior, records.subset(others)), best, model)
    fitted = fit_answers(rows, labels, kept_N[plants], taxonomy=taxonomy, prior_T=prior_T, fixed=fixed)
    thresholds = fitted.thresholds
    rule = replace(best, temperature=fitted.temperature, thresholds=thresholds.thresholds, promises=thresholds.promises)
    alone = score_pictures(logits, labels, model)
    top1 = float(alone.top_k_hits(1).mean()), float(fitted.found.top_k_hits(1).mean())
    return FittedPlace(data.prior, rule, fitted.conformal, len(labels), top1)


class FittedAnswers(msgspec.Struct, frozen=True):
    """What turns the logits of some plants into answers, fitted on these plants."""

    temperature: float
    thresholds: FittedThresholds
    conformal: ConformalTable
    found: Predictions
    """The answers to these plants."""


def fit_answers(
    logits: Rows, labels_N: Whole, kept_N: Flags, *, taxonomy: Taxonomy, prior_T: Floats, fixed: Mapping[Rank, float]
) -> FittedAnswers:
    """Fits temperature, thresholds and candidate sets on plants; the arguments are those of `fit_place`."""
    temperature = fit_temperature(logits, labels_N, taxonomy, np.arange(len(labels_N)))
    found = score_pictures(logits, labels_N, AnswerModel(taxonomy, temperature))
    thresholds = fit_thresholds(found.subset(kept_N).rank_scores, fixed)
    conformal = conformal_table_of(found.right_N, found.taxon_labels_N, prior_T)
    return FittedAnswers(temperature, thresholds, conformal, found)


def ratios(prior: PlacePrior, records: Records) -> Rows:
    """Log ratios of all taxa at some places, shape (N, T); computed when they are read."""
    places, num_taxa = list(records.places()), len(prior.counts)

    def read(chosen: slice | Whole) -> Floats:
        rows = [prior.log_ratios(places[position]) for position in np.arange(len(places))[chosen]]
        return np.array(rows, dtype=np.float32).reshape(-1, num_taxa)

    return ComputedRows((len(places), num_taxa), read)


def placed_rows(logits: Rows, ratios: Rows, rule: PlaceRule, model: AnswerModel) -> Rows:
    """Logits to which the place of each row is added; computed when they are read."""
    return ComputedRows(logits.shape, lambda chosen: add_place(logits[chosen], ratios[chosen], rule, model))
