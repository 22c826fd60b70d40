import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.metrics import calibration_error
from models.ranking import output_probabilities, taxon_probabilities
from models.taxonomy import Output, Taxonomy
from tests.training.small import make_taxonomy
from training.bundling.calibration import LEAST, MOST, fit_temperature, plants_drawn, right_probabilities
from training.evaluation.plants import picture_weights


def planted(temperature, num_pictures=20_000, num_outputs=10):
    """Logits that are calibrated once divided by the temperature."""
    random = np.random.default_rng(3)
    true_logits = random.normal(0, 1.5, (num_pictures, num_outputs))
    chance = random.gumbel(size=true_logits.shape)
    return (true_logits * temperature).astype(np.float32), (true_logits + chance).argmax(axis=1)


@pytest.mark.parametrize("temperature", [0.3, 0.85, 1.0, 1.7, 6.0])
def test_a_known_temperature_is_recovered(temperature):
    logits, labels = planted(temperature)
    found = fit_temperature(logits, labels, make_taxonomy(10), np.arange(len(labels)))
    assert found == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_calibrated_scores_match_the_accuracy(temperature):
    logits, labels = planted(temperature)
    found = fit_temperature(logits, labels, make_taxonomy(10), np.arange(len(labels)))
    before, after = (error_at(temperature, logits, labels) for temperature in (1.0, found))
    assert after < 0.02 < before


def error_at(temperature, logits, labels):
    probabilities = output_probabilities(logits, temperature)
    hits = probabilities.argmax(axis=1) == labels
    return calibration_error(probabilities.max(axis=1), hits, np.arange(len(labels))).value


def test_a_plant_with_many_pictures_counts_as_one():
    sure, unsure = planted(0.5, 400), planted(4.0, 400)
    logits = np.concatenate([sure[0], *[unsure[0][:40]] * 10])
    labels = np.concatenate([sure[1], *[unsure[1][:40]] * 10])
    repeated = np.concatenate([np.arange(400), np.tile(np.arange(400, 440), 10)])
    found = fit_temperature(logits, labels, make_taxonomy(10), repeated)
    once = fit_temperature(logits[:440], labels[:440], make_taxonomy(10), np.arange(440))
    assert found == pytest.approx(once, rel=1e-6)
    assert found < 0.9 * fit_temperature(logits, labels, make_taxonomy(10), np.arange(800))


def test_outputs_of_one_taxon_are_calibrated_as_one():
    taxonomy = make_taxonomy(5)
    twins = tuple(
        Output(key=f"{source}:{output.taxon_id}", source=source, taxon_id=output.taxon_id)
        for source in "ab"
        for output in taxonomy.outputs
    )
    doubled = Taxonomy(taxonomy_version="test", taxa=taxonomy.taxa, outputs=twins)
    logits, labels = planted(2.0, num_outputs=5)
    # Both outputs are the same plant, so it must not matter which of them is the label.
    spread = np.concatenate([logits, logits], axis=1)
    every = np.arange(len(labels))
    found = fit_temperature(spread, labels + 5 * (every % 2), doubled, every)
    assert found == pytest.approx(2.0, rel=0.05)
    assert taxon_probabilities(output_probabilities(spread, found), doubled).shape == (len(labels), 5)


def test_the_temperature_stays_within_its_bounds():
    certain = np.array([[0.3, 0.0]] * 5, dtype=np.float32)
    taxonomy, plants = make_taxonomy(2), np.arange(5)
    assert fit_temperature(certain, np.zeros(5, np.int64), taxonomy, plants) == pytest.approx(LEAST, rel=1e-6)
    assert fit_temperature(certain, np.ones(5, np.int64), taxonomy, plants) == pytest.approx(MOST, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.floats(0.3, 4))
def test_the_likelihood_of_chunks_is_the_plain_one(num_pictures, values_at_once, temperature):
    taxonomy = make_taxonomy(7)
    outputs = tuple(
        Output(f"{source}:{each.taxon_id}", source, each.taxon_id) for source in "abc" for each in taxonomy.outputs
    )
    tripled = Taxonomy(taxonomy_version="test", taxa=taxonomy.taxa, outputs=outputs)
    random = np.random.default_rng(num_pictures)
    logits = random.normal(0, 3, (num_pictures, 21)).astype(np.float32)
    taxa = random.integers(0, 7, num_pictures)
    with mock.patch("training.evaluation.stored_rows._VALUES_AT_ONCE", values_at_once):
        found = right_probabilities(logits, taxa, tripled, temperature)
    plain = taxon_probabilities(output_probabilities(logits, temperature), tripled)[np.arange(num_pictures), taxa]
    assert found == pytest.approx(plain, rel=1e-14)


def test_no_temperature_near_the_fitted_one_is_likelier():
    logits, labels = planted(1.7, 500)
    plants, taxonomy = np.arange(500) // 3, make_taxonomy(10)

    def loss(temperature):
        right = taxon_probabilities(output_probabilities(logits, temperature), taxonomy)[np.arange(500), labels]
        return -np.average(np.log(right), weights=picture_weights(plants))

    found = fit_temperature(logits, labels, taxonomy, plants)
    assert all(loss(found * math.exp(step)) > loss(found) for step in (-1e-4, 1e-4))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(1, 220), st.integers(0, 3))
def test_plants_are_drawn_whole_and_as_many_as_fit(plants, most, seed):
    plants = np.array(plants)
    chosen = plants_drawn(plants, most, seed)
    assert np.array_equal(chosen, plants_drawn(plants, most, seed))
    assert len(chosen) <= most or len(np.unique(plants[chosen])) == 1
    assert np.array_equal(np.flatnonzero(np.isin(plants, plants[chosen])), chosen)
    if len(chosen) < len(plants):
        assert len(chosen) + np.bincount(plants).max() > most  # the next plant did not fit in


def test_a_sample_of_plants_gives_nearly_the_same_temperature():
    logits, labels = planted(1.7)
    plants = np.arange(len(labels)) // 2
    whole, sampled = (fit_temperature(logits, labels, make_taxonomy(10), plants, most) for most in (20_000, 4000))
    assert sampled != whole
    assert sampled == pytest.approx(whole, rel=0.05)
