"""The rule of place is fitted on calibration plants: it helps, or there is none."""

import numpy as np
import pytest

from models.place import Where
from tests.models.tiny import species, taxonomy_of
from training.bundling.place import (
    LEAST_PLANTS,
    MOST_LOST,
    PlaceData,
    PlaceRule,
    Records,
    Thresholds,
    choose_rule,
    count_records,
    fit_place,
    fit_prior,
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


def fitted(**options):
    prior = fit_prior(drawn(1, 4000, **options)[0], NUM_TAXA)
    records, logits = drawn(2, NUM_PLANTS, **options)
    return fit_rule(prior, records, logits)


def fit_rule(prior, records, logits):
    every = np.ones(len(records), bool)
    options = {"taxonomy": TAXONOMY, "temperature": 1.0, "prior_T": np.full(NUM_TAXA, 1 / NUM_TAXA), "fixed": {}}
    return fit_place(PlaceData(prior, records, every), logits, records.taxon_N, every, **options)


def test_place_raises_accuracy_where_confusions_grow_elsewhere():
    found = fitted()
    before, after = found.top1
    assert after > before + 0.03
    assert found.num_plants == NUM_PLANTS
    assert found.rule.promises.species is not None
    assert len(found.conformal.conformity_N) == NUM_PLANTS


def test_a_place_that_says_nothing_gives_no_rule():
    found = fitted(place_matters=False)
    assert found is None or abs(found.top1[1] - found.top1[0]) < 0.01


def test_too_few_plants_give_no_rule():
    records, logits = drawn(2, LEAST_PLANTS - 1)
    assert fit_rule(count_records(records, NUM_TAXA, 10.0), records, logits) is None


@pytest.mark.parametrize("lost", [0.0, MOST_LOST, 2 * MOST_LOST])
def test_a_rule_that_costs_plants_out_of_their_range_is_not_chosen(lost):
    def measure(rule):
        if rule is None:
            return 1.0, 0.8
        return rule.floor, 0.8 - (lost if rule.floor < 0.3 else 0.0)

    chosen = choose_rule(measure)
    assert isinstance(chosen, PlaceRule)
    assert chosen.floor == (0.05 if lost <= MOST_LOST else 0.3)
    assert chosen.thresholds == Thresholds()


def test_held_out_places_choose_how_far_a_cell_is_trusted():
    one_per_cell = drawn(1, 4000, place_matters=False)[0]
    assert fit_prior(one_per_cell, NUM_TAXA).trust > fit_prior(drawn(1, 4000)[0], NUM_TAXA).trust
    assert fit_prior(one_per_cell, NUM_TAXA).log_ratios(Where(45.0, 10.0)) == pytest.approx(0, abs=0.3)
