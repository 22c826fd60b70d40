"""The prior of place and season, and answers that rest on it: properties for any records."""

from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.calibration import (
    Calibration,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    candidate_set,
    conformal_table_of,
)
from models.errors import BundleError
from models.place import SIDES_KM, PlaceModel, PlaceRule, Where, band_at, cell_at, read_place, write_place
from models.ranking import MistakenTaxa, Promise, Promises, Thresholds
from models.scoring import AnswerModel
from tests.make import from_table
from tests.models.tiny import species, taxonomy_of
from training.fit.place import Records, count_records

NUM_TAXA = 4
TAXONOMY = taxonomy_of(*(species(f"Rosa {name}", "Rosaceae") for name in ("alba", "canina", "gallica", "rugosa")))
BERLIN, PARIS, SYDNEY = (52.5, 13.4), (48.9, 2.4), (-33.9, 151.2)
LOGITS = np.array([[2.0, 1.8, 0.0, 0.0]])
places = st.builds(
    Where,
    latitude=st.floats(-90, 90),
    longitude=st.floats(-180, 180),
    day=st.none() | st.dates(date(1900, 1, 1), date(2100, 12, 31)),
)


def records(*entries):
    """Records of (taxon, place, month, how many)."""
    columns = list(
        zip(*((taxon, *where, month) for taxon, where, month, many in entries for _ in range(many)), strict=True)
    )
    return Records(*(np.array(column) for column in columns))


def prior_of(*entries, trust=10.0):
    return count_records(records(*entries), NUM_TAXA, trust)


# Taxon 0 grows in Berlin in May, 1 in Sydney, 2 in both; of taxon 3 nothing is known.
PRIOR = prior_of((0, BERLIN, 5, 60), (1, SYDNEY, 5, 60), (2, BERLIN, 11, 30), (2, SYDNEY, 11, 30))


RULE = PlaceRule(1.0, 0.2, 1.0, Thresholds())


def model_of(prior=PRIOR, rule=RULE, **more):
    return AnswerModel(TAXONOMY, 1.0, place=PlaceModel(prior, rule, None), **more)


def scores(where, model=None, logits=LOGITS, coverage=None):
    answer = answer_plant(logits, np.zeros((1, 3)), model or model_of(), Question(where=where, coverage=coverage))
    found = {ranked.taxon.taxon_id: ranked.score for ranked in answer.taxa}
    return np.array([found[taxon.taxon_id] for taxon in TAXONOMY.taxa]), answer


def test_a_taxon_is_likelier_where_and_when_it_is_recorded():
    here, there = (PRIOR.log_ratios(Where(*place)) for place in (BERLIN, SYDNEY))
    assert here[0] > 0 > here[1]
    assert there[1] > 0 > there[0]
    assert abs(here[2]) < 0.5
    may, november = (PRIOR.log_ratios(Where(*BERLIN, date(2026, month, 15))) for month in (5, 11))
    assert may[0] > here[0] > november[0]
    assert november[2] > may[2]


@pytest.mark.parametrize("many", [60, 1])
def test_the_share_around_backs_off_from_200_km_to_800_to_3200_and_to_the_world(many):
    assert [cell_at(*BERLIN, side) == cell_at(*PARIS, side) for side in SIDES_KM] == [False, False, True]
    share = 0.5  # of taxon 0, in the world and within 3,200 km
    for others in (many, 0, 0):  # within 3,200, 800 and 200 km; a cell's own share weighs as much as 10 records
        share = (many + 10 * share) / (many + others + 10)
    found = prior_of((0, BERLIN, 0, many), (1, PARIS, 0, many), trust=10.0).log_ratios(Where(*BERLIN))
    assert found[0] == pytest.approx(np.log(share / 0.5) * many / (many + 10), abs=1e-12)


def test_bands_end_at_the_tropics():
    assert [band_at(latitude) for latitude in (23.44, 0, -23.44, 23.45, -23.45)] == [1, 1, 1, 0, 2]


def season(prior, taxon, month):
    """What a month adds to a taxon's log ratio, before that is shrunk."""
    dated, undated = (prior.log_ratios(Where(*BERLIN, day))[taxon] for day in (date(2026, month, 15), None))
    return (dated - undated) * (prior.counts[taxon] + 10) / prior.counts[taxon]


@from_table
def test_months_that_all_plants_of_a_band_share_say_nothing(months):
    prior = prior_of(
        *((taxon, BERLIN, month, many) for taxon, many in ((0, 6), (1, 90)) for month in months), (2, SYDNEY, 7, 40)
    )
    for taxon in range(3):
        assert [season(prior, taxon, month) for month in range(1, 13)] == pytest.approx([0.0] * 12, abs=1e-12)


def test_a_record_counts_in_its_month_and_half_as_much_in_its_neighbors():
    every_month = [(1, BERLIN, month, 10) for month in range(1, 13)]
    prior = prior_of((0, BERLIN, 5, 1), *every_month)
    for month, kernel in ((3, 0.0), (4, 0.25), (5, 0.5), (6, 0.25), (7, 0.0)):
        usual = (10 + kernel) / 121  # share of the month in all records of the band
        expected = np.log((kernel + 12 * usual) / ((1 + 12) * usual))
        assert season(prior, 0, month) == pytest.approx(expected, abs=1e-12)
        assert (expected > 0) == (kernel > 0)


@settings(max_examples=100)
@given(places)
def test_the_floor_holds_everywhere_and_an_unknown_taxon_is_neither_raised_nor_lowered(where):
    model = model_of()
    factor = RULE.log_factors(PRIOR.log_ratios(where))
    assert np.isfinite(factor).all()
    assert (np.abs(factor) <= -np.log(0.2) + 1e-9).all()
    assert PRIOR.log_ratios(where)[3] == 0
    found, _ = scores(where, model)
    alone, _ = scores(None, model)
    assert found.sum() == pytest.approx(1)
    assert (found >= alone * 0.2**2 - 1e-12).all()


@settings(max_examples=30)
@given(st.floats(-90, 90), st.sampled_from(SIDES_KM))
def test_the_date_line_does_not_divide_a_place(latitude, side_km):
    assert cell_at(latitude, 180.0, side_km) == cell_at(latitude, -180.0, side_km)


@pytest.mark.parametrize("side_km", SIDES_KM)
def test_poles_and_edges_have_cells_and_cells_are_alike_in_size(side_km):
    rng = np.random.default_rng(0)
    latitude, longitude = np.degrees(np.arcsin(rng.uniform(-1, 1, 100_000))), rng.uniform(-180, 180, 100_000)
    cells = [cell_at(*place, side_km) for place in zip(latitude[:5000], longitude[:5000], strict=True)]
    assert min(cells) >= 0
    for pole in (90.0, -90.0):
        near = {cell_at(pole, longitude, side_km) for longitude in (-180.0, 0.0, 180.0)}
        assert len(near) <= 6
    per_cell = 4 * np.pi * 6371**2 / (max(cells) + 1)
    assert per_cell == pytest.approx(side_km**2, rel=0.25)


def test_29_february_and_31_december_are_days_like_others():
    for day in (date(2024, 2, 29), date(2025, 12, 31), date(2026, 1, 1)):
        assert np.isfinite(PRIOR.log_ratios(Where(*BERLIN, day))).all()
    december, january = (PRIOR.log_ratios(Where(*BERLIN, date(2026, month, 1))) for month in (12, 1))
    assert december[2] > january[2]  # next to November, on the circle of months


@given(places)
def test_the_score_of_a_taxon_rises_with_its_ratio(where):
    model = model_of()
    factor = RULE.log_factors(PRIOR.log_ratios(where))
    change = np.log(scores(where, model)[0] / scores(None, model)[0])
    assert np.diff(change) == pytest.approx(np.diff(factor), abs=1e-9)


@pytest.mark.parametrize("divisor", [0.5, 0.8])
@pytest.mark.parametrize("sources", ["a", "ab"])
def test_place_multiplies_what_the_pictures_say_before_the_temperature(sources, divisor):
    names = [taxon.scientific_name for taxon in TAXONOMY.taxa]
    taxonomy = taxonomy_of(*TAXONOMY.taxa, outputs=[(source, name) for source in sources for name in names])
    logits = np.random.default_rng(0).normal(size=(1, len(taxonomy.outputs)))
    rule, where = PlaceRule(0.5, 0.2, divisor, Thresholds()), Where(*SYDNEY)
    found, answer = scores(where, AnswerModel(taxonomy, 0.5, place=PlaceModel(PRIOR, rule, None)), logits)
    ratio = np.exp(0.5 * np.clip(PRIOR.log_ratios(where), np.log(0.2), -np.log(0.2)))
    for temperature, factor, scores_T in (
        (0.5, np.ones(NUM_TAXA), answer.place.vision_T),
        (divisor, ratio ** (0.5 / divisor), found),
    ):
        expected = np.exp(logits / temperature).reshape(-1, NUM_TAXA).sum(axis=0) * factor
        assert scores_T == pytest.approx(expected / expected.sum(), rel=1e-9)
    assert answer.place.ratio_T == pytest.approx(ratio, rel=1e-12)
    assert rule.log_factors(np.array([-9.0])) == pytest.approx(0.5 * np.log(0.2))


def test_without_a_place_nothing_changes_and_a_flat_prior_changes_nothing():
    plain = AnswerModel(TAXONOMY, 1.0)
    expected, answer = scores(None, plain)
    assert answer.place is None
    assert np.array_equal(scores(None)[0], expected)
    flat = prior_of(*((taxon, place, 0, 25) for taxon in range(3) for place in (BERLIN, SYDNEY)))
    assert scores(Where(*BERLIN), model_of(flat))[0] == pytest.approx(expected, abs=1e-12)


def test_an_answer_says_when_place_decided_and_shows_both_opinions():
    found, answer = scores(Where(*SYDNEY))
    assert answer.taxa[0].taxon.scientific_name == "Rosa canina"
    assert (
        "Place or season decided: of 90 plant records within about 200 km, 60 are Rosa canina and 0 are Rosa alba"
        in (answer.verdict.reason)
    )
    assert answer.place.vision_T.argmax() == 0
    expected = answer.place.vision_T * answer.place.ratio_T
    assert found == pytest.approx(expected / expected.sum())
    _, here = scores(Where(*BERLIN))
    assert "Place or season decided" not in here.verdict.reason


def test_place_says_nothing_about_what_is_not_named():
    nothing = Calibration(
        features=FeatureTable(np.zeros(3), np.eye(3), np.ones(3), np.eye(3), np.zeros((1, 3))),
        familiarity=FamiliarityTable(np.array([2.0]), np.array([-1.0])),
        cutoffs=Cutoffs(familiar=0.9),
    )
    _, answer = scores(Where(*SYDNEY), model_of(calibration=nothing))
    assert answer.verdict.unknown_plant
    assert "Place or season decided" not in answer.verdict.reason


def test_thresholds_of_answers_with_a_place_are_their_own():
    strict = replace(RULE, thresholds=Thresholds(species=1.0, genus=1.0, family=1.0))
    model = model_of(rule=strict, thresholds=Thresholds(species=0.1))
    assert scores(None, model)[1].verdict.rank == "species"
    assert scores(Where(*BERLIN), model)[1].verdict.rank == "uncertain"


@from_table
def test_taxa_that_are_often_mistaken_keep_the_stricter_limit_at_a_place_and_no_promise(own, general, rank):
    promise = Promise(0.05, 0.95, num_named=400, num_wrong=3)
    rule = replace(RULE, thresholds=Thresholds(species=general, genus=0.1), promises=Promises(species=promise))
    mistaken = MistakenTaxa(tuple(TAXONOMY.by_id), own, promise)
    verdict = scores(Where(*BERLIN), model_of(rule=rule, mistaken=mistaken))[1].verdict
    assert (verdict.rank, verdict.promise) == (rank, None)


def test_sets_and_promises_of_answers_with_a_place_are_their_own():
    every, one = (conformal_table_of(np.full(60, right), np.zeros(60, int), np.full(4, 0.25)) for right in (1e-9, 0.6))
    theirs, others = (Promise(0.05, 0.95, num_named=400, num_wrong=wrong) for wrong in (3, 9))
    rule = PlaceRule(1.0, 0.2, 1.0, Thresholds(species=0.1), Promises(species=theirs))
    model = AnswerModel(
        TAXONOMY,
        1.0,
        rule.thresholds,
        Promises(species=others),
        Calibration(conformal=every, conformal_mistaken=every),
        place=PlaceModel(PRIOR, rule, one),
        mistaken=MistakenTaxa((TAXONOMY.taxa[-1].taxon_id,), 0.1),
    )
    for where, table, promise, num_taxa in ((None, every, others, 4), (Where(*SYDNEY), one, theirs, 1)):
        found, answer = scores(where, model, coverage=0.9)
        expected = candidate_set(table, found[None], 0.9)
        assert {each.taxon.taxon_id for each in answer.candidates.taxa} == {
            TAXONOMY.taxa[position].taxon_id for position in expected
        }
        assert answer.candidates.num_taxa == num_taxa
        assert answer.verdict.promise is promise


def test_the_part_is_read_back_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "place.npz"
    write_place(path, PRIOR)
    again = read_place(path, NUM_TAXA)
    where = Where(*BERLIN, date(2026, 5, 1))
    assert np.array_equal(again.log_ratios(where), PRIOR.log_ratios(where))
    with pytest.raises(BundleError, match="fit together"):
        read_place(path, NUM_TAXA + 1)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BundleError):
        read_place(path, NUM_TAXA)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0/taxon_E", 9),
        ("0/taxon_E", -1),
        ("1/count_E", 0),
        ("2/start_C", 5),
        ("trust", np.nan),
        ("month_TBM", -1),
        ("month_TBM", np.nan),
    ],
)
def test_numbers_that_lead_to_wrong_answers_are_refused(tmp_path, name, value):
    path = tmp_path / "place.npz"
    write_place(path, PRIOR)
    with np.load(path) as file:
        arrays = dict(file)
    arrays[name] = np.full(arrays[name].shape, value)
    np.savez(path, **arrays)
    with pytest.raises(BundleError):
        read_place(path, NUM_TAXA)
