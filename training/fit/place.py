"""Fits the part `place` of a bundle on the coordinates and dates of training pictures, and chooses how it is used.

One half of the calibration plants with a place chooses the rule: the weight and the floor at which the right taxon is
likeliest. On the other half the temperature, thresholds, promises and candidate sets of answers with a place are
fitted.

Letters in names: N calibration plants, M strangers, T taxa, O outputs.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from itertools import product
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from scipy.special import logsumexp

from models.arrays import Columns, Flags
from models.bundle_record import Metric
from models.calibration import conformal_table_of
from models.figures import metric, split_metrics
from models.metrics import Whole, top_k_hits
from models.outputs import ComputedRows, Outputs, Predictions, RankScores, chunks
from models.place import SIDES_KM, CellCounts, PlaceModel, PlacePrior, PlaceRule, Where, band_at, cells_at
from models.ranking import Floats, Rank, Thresholds
from models.scoring import AnswerModel, add_place, probabilities
from training.dataset.manifest import Manifest
from training.fit.names import FittedThresholds, fit_temperature
from training.fit.pictures import Pictures
from training.fit.unknown_plants import UnknownPlants, drawn_among

LEAST_RECORDS: Final = 1_000
"""Training pictures with a place that a prior needs."""
LEAST_PLANTS: Final = 1_000
"""Calibration plants with a place that a rule needs, in both halves."""
WEIGHTS: Final = (0.5, 1.0)
FLOORS: Final = (0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
MOST_LOST: Final = 0.01
"""Largest fall of top-1 if every plant stood at the place of another. Plants are recorded there, and for many it is in
their range: plants out of their range lose more, which no calibration plant can tell."""
TRUSTS: Final = (10.0, 30.0, 100.0, 300.0, 1000.0)
_MOST_PLANTS: Final = 5_000  # on which weight and floor are chosen
_MOST_LOSS: Final = -np.log(1e-12)  # of one plant, nats
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
    days = table["taken_on"].to_numpy(zero_copy_only=False).astype("datetime64[M]")
    month = np.where(np.isnat(days), 0, days.astype(np.int64) % 12 + 1)
    has_place = np.isfinite(latitude) & np.isfinite(longitude)
    taxa = manifest.taxonomy.taxon_of_output[manifest.labels[rows]]
    found = Records(np.asarray(taxa, np.int64), latitude, longitude, month)
    return found.subset(has_place), has_place


def fit_prior(records: Records, num_taxa: int) -> PlacePrior:
    """Counts the records, and chooses how far a cell is trusted by the likelihood of held-out records."""
    held_out = cells_at(records.latitude_N, records.longitude_N, SIDES_KM[0] / 10) % _HELD_OUT == 0
    kept = records.subset(~held_out)
    tested = records.subset(held_out)
    chosen = TRUSTS[2]
    if len(kept) and len(tested):
        draft = count_records(kept, num_taxa, chosen)
        world_T = np.maximum(draft.counts, 1) / max(draft.counts.sum(), 1)
        sample = tested.subset(np.random.default_rng(0).permutation(len(tested))[:2000])

        def likelihood(trust: float) -> float:
            """Mean log probability of the right taxon by place alone."""
            prior = replace(draft, trust=trust)
            total = 0.0
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

    `measure` gives the loss of each plant with a rule (None for no place), and top-1 with exchanged places. The rule
    with the smallest mean loss is chosen of those that cost at most `MOST_LOST` of that, and whose gain over no place
    is more than its standard error.
    """
    alone_N, alone = measure(None)
    best = None
    most = 0.0
    for weight, floor in product(WEIGHTS, FLOORS):
        rule = PlaceRule(weight, floor, 1.0, Thresholds())
        loss_N, exchanged = measure(rule)
        gain_N = alone_N - loss_N
        standard_error = gain_N.std() / np.sqrt(len(gain_N))
        if gain_N.mean() > max(most, standard_error) and exchanged >= alone - MOST_LOST:
            best = rule
            most = float(gain_N.mean())
    return best


class PlaceData(msgspec.Struct, frozen=True):
    """Where the training pictures and the calibration plants were photographed."""

    prior: PlacePrior
    """Fitted on training pictures."""
    records: Records
    """Of the plants that have a place."""
    has_place_N: Flags
    """Which of the plants these are."""

    def half(self, first: int) -> tuple[Whole, Records]:
        """Returns every second plant that has a place, as positions among all plants, and their records."""
        return np.flatnonzero(self.has_place_N)[first::2], self.records.subset(slice(first, None, 2))


def place_data(manifest: Manifest, training: Whole, plants: Whole) -> PlaceData | None:
    """Fits the prior on training pictures, and looks up the calibration plants; None if too few pictures have a place.

    Both are rows of the manifest, one of each plant.
    """
    records, _ = records_of(manifest, training)
    if len(records) < LEAST_RECORDS:
        return None
    return PlaceData(fit_prior(records, len(manifest.taxonomy.taxa)), *records_of(manifest, plants))


def fit_place(
    place: PlaceData | None,
    outputs: Outputs,
    plants: Predictions,
    kept_N: Flags,
    model: AnswerModel,
    *,
    prior_T: Floats,
    fit_names: Callable[[Mapping[Rank, RankScores]], FittedThresholds],
    strangers: tuple[UnknownPlants, Flags] | None = None,
) -> tuple[PlaceModel, tuple[float, float]] | tuple[None, None]:
    """Chooses how place is used on half of the calibration plants, and fits what follows on the other half.

    Returns what answers with a place need, and the share of the other half whose likeliest taxon is right, without and
    with place; nothing if place does not help.

    Args:
        place: Where the plants stand, if that is known. Strangers stand at places of these plants.
        outputs: Those of the plants.
        plants: Their scores without place.
        kept_N: Whether each plant reaches the cutoffs.
        model: Gives taxonomy and temperature.
        prior_T: Share of each taxon among the training pictures.
        fit_names: Fits thresholds to the names of plants that are kept.
        strangers: Unknown plants, and whether each reaches the cutoffs.
    """
    rule = None if place is None else fit_rule(place, outputs, model)
    if place is None or rule is None:
        return None, None
    chosen, records = place.half(1)
    placed = with_place(outputs.choose(chosen), records, place.prior, rule, model)
    temperature = fit_temperature(placed, model.taxonomy)
    scored = AnswerModel(model.taxonomy, temperature)
    found = placed.score(scored)
    named = found.subset(kept_N[chosen])
    if strangers is not None:
        unknown, kept_M = strangers
        drawn = unknown.choose(kept_M & drawn_among(unknown.names, len(chosen)))
        there = records.subset(np.random.default_rng(0).integers(len(records), size=len(drawn.outputs.logits)))
        elsewhere = replace(drawn, outputs=with_place(drawn.outputs, there, place.prior, rule, model))
        named = Predictions.join((named, elsewhere.predictions(scored)))
    fitted = fit_names(named.rank_scores)
    rule = replace(rule, temperature=temperature, thresholds=fitted.thresholds, promises=fitted.promises)
    conformal = conformal_table_of(found.right_N, found.taxon_labels_N, prior_T)
    top1 = (float(plants.top_k_hits(1)[chosen].mean()), float(found.top_k_hits(1).mean()))
    return PlaceModel(place.prior, rule, conformal), top1


def fit_rule(data: PlaceData, outputs: Outputs, model: AnswerModel) -> PlaceRule | None:
    """Chooses the rule on the first half of the plants; None if too few have a place, or if place does not help.

    The outputs are those of all plants. Temperature and thresholds are not fitted yet.
    """
    if len(data.records) < LEAST_PLANTS:
        return None
    half, records = data.half(0)
    random = np.random.default_rng(0)
    some = random.permutation(len(half))[:_MOST_PLANTS]
    here, exchanged = (log_ratios(data.prior, records.subset(rows)) for rows in (some, random.permutation(some)))
    own = outputs.choose(half[some])
    taxa_N = model.taxonomy.taxon_of_output[own.labels]
    smallest = np.finfo(np.float64).tiny
    log_NT = np.concatenate(
        [np.log(np.maximum(probabilities(own.logits[part], model), smallest)) for part in chunks(*own.logits.shape)]
    )

    def measure(rule: PlaceRule | None) -> tuple[Floats, float]:
        loss_N = np.empty(len(some))
        hits = 0
        for part in chunks(*log_NT.shape):
            scores_NT, elsewhere_NT = (
                log_NT[part] if rule is None else log_NT[part] + rule.log_factors(each[part])
                for each in (here, exchanged)
            )
            right_N = scores_NT[np.arange(len(scores_NT)), taxa_N[part]]
            loss_N[part] = np.minimum(logsumexp(scores_NT, axis=1) - right_N, _MOST_LOSS)
            hits += int(top_k_hits(elsewhere_NT, taxa_N[part], 1).sum())
        return loss_N, hits / len(some)

    return choose_rule(measure)


def log_ratios(prior: PlacePrior, records: Records) -> Floats:
    """Log ratios of all taxa at some places, shape (N, T)."""
    rows = [prior.log_ratios(where) for where in records.places()]
    return np.array(rows, dtype=np.float32).reshape(-1, len(prior.counts))


def with_place(outputs: Outputs, records: Records, prior: PlacePrior, rule: PlaceRule, model: AnswerModel) -> Outputs:
    """Adds the place of each picture to its logits, when they are read; without features."""

    def read(chosen: slice | Whole) -> Floats:
        ratios_NT = log_ratios(prior, records.subset(chosen))
        return add_place(outputs.logits[chosen], ratios_NT, rule, model).astype(np.float32)

    return Outputs(ComputedRows(outputs.logits.shape, read), labels=outputs.labels)


def place_metrics(outputs: Outputs, found: Predictions, test: Pictures, model: AnswerModel) -> list[Metric]:
    """Measures the test pictures that have a place, with and without it; `found` are the scores of all, without it."""
    records, has_place = records_of(test.manifest, test.rows)
    if model.place is None or not len(records):
        return []
    chosen = np.flatnonzero(has_place)
    data = f"{test.name}, those with a place"
    place = model.place
    placed = with_place(outputs.choose(chosen), records, place.prior, place.rule, model)
    without = replace(found.subset(chosen), plants_N=np.arange(len(chosen)))
    on = placed.score(replace(model, temperature=place.rule.temperature))
    metrics = []
    for name, each in (("off", without), ("on", on)):
        figures = split_metrics(each)
        metrics.append(metric(f"top1_taxon_place_{name}", figures.top1_taxon, data))
        metrics.append(metric(f"ece_place_{name}", figures.ece, data))
    return metrics
