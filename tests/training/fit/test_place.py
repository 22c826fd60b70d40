"""The rule of place is fitted on calibration plants: it helps, or there is none."""

from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.calibration import conformal_table_of
from models.outputs import Outputs
from models.place import PlaceModel, Where
from models.scoring import AnswerModel
from tests.models.tiny import species, taxonomy_of
from tests.training.small import write_data
from training.dataset.manifest import Manifest
from training.fit.names import fit_thresholds
from training.fit.place import (
    MOST_LOST,
    PlaceData,
    PlaceRule,
    Records,
    Thresholds,
    choose_rule,
    count_records,
    fit_place,
    fit_prior,
    place_metrics,
    records_of,
)

NUM_TAXA, NUM_PLANTS = 20, 1500
TAXONOMY = taxonomy_of(*(species(f"Rosa t{number:02}", "Rosaceae") for number in range(NUM_TAXA)))


def drawn(seed, num, *, place_matters=True):
    """Plants of two continents, which a vision model confuses with one of the other continent."""
    random = np.random.default_rng(seed)
    taxon = random.integers(NUM_TAXA, size=num)
    east = taxon % 2 if place_matters else random.integers(2, size=num)
    records = Records(taxon, random.uniform(40, 50, num), np.where(east, 100.0, 10.0), np.zeros(num, np.int64))
    logits = np.zeros((num, NUM_TAXA), np.float32)
    rows = np.arange(num)
    logits[rows, taxon] = 4 + random.normal(0, 1.5, num)
    logits[rows, taxon ^ 1] = 4 + random.normal(-1, 1.5, num)
    return records, logits


PRIOR = count_records(drawn(1, 4000)[0], NUM_TAXA, 10.0)


def fitted(**options):
    prior = fit_prior(drawn(1, 4000, **options)[0], NUM_TAXA)
    return fit(prior, *drawn(2, NUM_PLANTS, **options))


def fit(prior, records, logits, *, kept_N=None, taxonomy=TAXONOMY, labels=None):
    every = np.ones(len(records), bool)
    model = AnswerModel(taxonomy, 1.0)
    outputs = Outputs(logits, labels=records.taxon_N if labels is None else labels)
    return fit_place(
        PlaceData(prior, records, every),
        outputs,
        outputs.score(model),
        every if kept_N is None else kept_N,
        model,
        prior_T=np.full(NUM_TAXA, 1 / NUM_TAXA),
        fit_names=fit_thresholds,
    )


def test_place_raises_accuracy_where_confusions_grow_elsewhere():
    found, (before, after) = fitted()
    assert after > before + 0.03
    assert found.rule.promises.genus is not None
    assert len(found.conformal.conformity_N) == NUM_PLANTS / 2


def test_a_place_that_says_nothing_gives_no_rule():
    assert fitted(place_matters=False) == (None, None)


@pytest.mark.parametrize(("num_plants", "has_rule"), [(999, False), (1000, True)])
def test_a_rule_needs_a_thousand_plants(num_plants, has_rule):
    records, logits = drawn(2, num_plants)
    found, _ = fit(PRIOR, records, logits)
    assert (found is not None) == has_rule


def test_one_half_of_the_plants_chooses_the_rule_and_the_other_half_fits_what_follows():
    """Place helps only those plants that do not choose; then only those that do."""
    records, logits = drawn(2, NUM_PLANTS)
    for half, has_rule in ((0, False), (1, True)):
        longitude = records.longitude_N.copy()
        longitude[half::2] = np.random.default_rng(0).permutation(longitude[half::2])
        found, top1 = fit(PRIOR, replace(records, longitude_N=longitude), logits)
        assert (found is not None) == has_rule
    assert top1[1] < top1[0] + MOST_LOST


def test_fitted_tables_are_those_of_answers_with_a_place():
    records, logits = drawn(2, 1000)
    names = [taxon.scientific_name for taxon in TAXONOMY.taxa]
    twice = taxonomy_of(*TAXONOMY.taxa, outputs=[(source, name) for source in "ab" for name in reversed(names)])
    logits = np.concatenate([logits[:, ::-1], logits[:, ::-1] - 1], axis=1)
    labels = NUM_TAXA - 1 - records.taxon_N
    kept_N = logits.argmax(axis=1) == labels  # no plant that is wrong without place
    found, _ = fit(PRIOR, records, logits, kept_N=kept_N, taxonomy=twice, labels=labels)
    model = AnswerModel(twice, 1.0, place=found)
    position = {taxon.taxon_id: index for index, taxon in enumerate(twice.taxa)}
    fitted_on, places = np.arange(1, 1000, 2), list(records.places())
    scores_NT = np.zeros((len(fitted_on), NUM_TAXA))
    for row, plant in enumerate(fitted_on):
        answer = answer_plant(logits[[plant]], np.zeros((1, 3)), model, Question(NUM_TAXA, where=places[plant]))
        for each in answer.taxa:
            scores_NT[row, position[each.taxon.taxon_id]] = each.score
    taxon_N, kept_N = records.taxon_N[fitted_on], kept_N[fitted_on]
    table = conformal_table_of(scores_NT[np.arange(500), taxon_N], taxon_N, np.full(NUM_TAXA, 1 / NUM_TAXA))
    assert found.conformal.conformity_N == pytest.approx(table.conformity_N, rel=1e-4)
    assert found.conformal.num_plants_T.tolist() == table.num_plants_T.tolist()
    ranks = Outputs(np.log(scores_NT), labels=taxon_N).score(AnswerModel(TAXONOMY, 1.0)).rank_scores
    of_kept, of_all = (
        fit_thresholds({rank: scores.subset(chosen) for rank, scores in ranks.items()})
        for chosen in (kept_N, np.ones(500, bool))
    )
    assert (found.rule.thresholds, found.rule.promises) == (of_kept.thresholds, of_kept.promises)
    assert of_kept.thresholds != of_all.thresholds


@pytest.mark.parametrize("lost", [0.0, MOST_LOST, 2 * MOST_LOST])
def test_a_rule_that_costs_plants_at_exchanged_places_is_not_chosen(lost):
    def measure(rule):
        if rule is None:
            return np.ones(4), 0.8
        return np.full(4, rule.floor), 0.8 - (lost if rule.floor < 0.3 else 0.0)

    chosen = choose_rule(measure)
    assert isinstance(chosen, PlaceRule)
    assert chosen.floor == (0.05 if lost <= MOST_LOST else 0.3)
    assert chosen.thresholds == Thresholds()


@pytest.mark.parametrize(("gain", "is_chosen"), [(0.09, False), (0.11, True)])
def test_a_rule_gains_more_than_its_standard_error_or_there_is_none(gain, is_chosen):
    varied = np.tile([-1.0, 1.0], 50)  # of 100 plants, so that the standard error of the mean is 0.1

    def measure(rule):
        return np.zeros(100) if rule is None else varied - gain, 0.8

    assert (choose_rule(measure) is not None) == is_chosen


def test_records_have_the_place_and_month_of_their_picture(tmp_path):
    rows = [(f"{number}.png", TAXONOMY.output_keys[number], "train") for number in range(4)]
    taken_on = [date(2020, 1, 31), date(1969, 12, 1), None, None]
    places = {"latitude": [52.5, -33.9, None, 1.5], "longitude": [13.4, 151.2, 13.4, 2.5], "taken_on": taken_on}
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, rows, TAXONOMY, **places))
    found, has_place = records_of(manifest, np.arange(4))
    assert has_place.tolist() == [True, True, False, True]
    assert found.taxon_N.tolist() == [0, 1, 3]
    assert found.latitude_N == pytest.approx([52.5, -33.9, 1.5])
    assert found.longitude_N == pytest.approx([13.4, 151.2, 2.5])
    assert found.month_N.tolist() == [1, 12, 0]
    months = np.zeros((NUM_TAXA, 3, 12))
    months[0, 0, 0] = months[1, 2, 11] = 1
    assert np.array_equal(count_records(found, NUM_TAXA, 10.0).month_TBM, months)


def test_the_calibration_error_with_a_place_is_that_at_the_temperature_of_the_rule(tmp_path):
    rows = [(f"{number}.png", TAXONOMY.output_keys[number], "test") for number in range(4)]
    places = {"latitude": [45.0] * 4, "longitude": [10.0] * 4, "taken_on": [None] * 4}
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, rows, TAXONOMY, **places))
    rule = PlaceRule(1.0, 0.5, 0.5, Thresholds())
    prior = count_records(Records(np.zeros(0, np.int64), *np.zeros((2, 0)), np.zeros(0, np.int64)), NUM_TAXA, 10.0)
    model = AnswerModel(TAXONOMY, 1.0, place=PlaceModel(prior, rule, None))
    outputs = Outputs(3 * np.eye(4, NUM_TAXA, dtype=np.float32), labels=np.arange(4))
    test = SimpleNamespace(manifest=manifest, rows=np.arange(4), name="drawn")
    found = {each.name: each.value for each in place_metrics(outputs, outputs.score(model), test, model)}
    for name, temperature in (("off", 1.0), ("on", 0.5)):
        assert found[f"ece_place_{name}"] == pytest.approx(1 - 1 / (1 + 19 * np.exp(-3 / temperature)))


def test_held_out_places_choose_how_far_a_cell_is_trusted():
    one_per_cell = drawn(1, 4000, place_matters=False)[0]
    assert fit_prior(one_per_cell, NUM_TAXA).trust > fit_prior(drawn(1, 4000)[0], NUM_TAXA).trust
    assert fit_prior(one_per_cell, NUM_TAXA).log_ratios(Where(45.0, 10.0)) == pytest.approx(0, abs=0.3)
