"""Scores from features: length does not matter, near pictures are familiar, and plants score higher than things."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calibration import FamiliarityTable, FeatureTable, PlantHead, log_odds, unit_length

EYE = np.eye(3, dtype=np.float32)
TABLE = FeatureTable(
    center_F=np.zeros(3, np.float32),
    basis_FD=EYE,
    whole_D=np.ones(3, np.float32),
    within_DD=2 * EYE,
    mean_TD=np.array([[2, 0, 0], [0, 2, 0]], np.float32),
)


def test_distance_is_to_the_nearest_taxon_less_that_to_the_whole():
    # After `within_DD` the picture lies at (1.2, 1.6, 0); the second taxon is nearer: 1.2² + 0.4². To the whole: 1.
    assert TABLE.distances(np.array([[0.6, 0.8, 0.0]])) == pytest.approx([1.6 - 1.0], abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(0.01, 100))
def test_the_length_of_features_does_not_matter(seed, factor):
    features = np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(TABLE.distances(features * factor), TABLE.distances(features), rtol=1e-3, atol=1e-4)


def test_features_of_length_0_have_finite_scores():
    assert np.isfinite(unit_length(np.zeros((1, 3)))).all()
    assert np.isfinite(TABLE.distances(np.zeros((1, 3)))).all()


@settings(max_examples=50, deadline=None)
@given(confidence=st.floats(0, 1), distance=st.floats(-1e6, 1e6), bias=st.floats(-1e3, 1e3))
def test_plant_scores_are_probabilities(confidence, distance, bias):
    head = PlantHead(np.ones(3, np.float32), weight_confidence=0.5, weight_distance=-0.1, bias=bias)
    (score,) = head.scores(np.ones((1, 3)), np.array([confidence]), np.array([distance]))
    assert 0 <= score <= 1


def test_the_plant_head_is_a_logistic_regression():
    head = PlantHead(np.array([1, 0, 0], np.float32), weight_confidence=2.0, weight_distance=-3.0, bias=0.25)
    (score,) = head.scores(np.array([[3.0, 4.0, 0.0]]), np.array([0.5]), np.array([0.1]))
    assert score == pytest.approx(1 / (1 + np.exp(-(0.6 + 2.0 * 0 - 0.3 + 0.25))))


def test_log_odds_are_finite_at_0_and_1():
    assert log_odds(np.array([0.0, 0.5, 1.0])) == pytest.approx([-13.8155, 0, 13.8155], abs=1e-3)


def test_familiarity_is_the_mean_of_two_ranks():
    table = FamiliarityTable(np.array([0.2, 0.4, 0.6, 0.8]), np.array([-3.0, -2.0, -1.0, 0.0]))
    scores = table.scores(np.array([0.9, 0.5, 0.1]), np.array([-4.0, -1.5, 1.0]))
    assert scores == pytest.approx([1.0, 0.5, 0.0])


def test_calibration_pictures_that_are_as_sure_and_as_near_count_as_less_familiar():
    table = FamiliarityTable(np.array([0.2, 0.5, 0.5, 0.8]), np.array([-2.0, -1.0, -1.0, 0.0]))
    assert table.scores(np.array([0.5, 0.2]), np.array([-1.0, 0.0])) == pytest.approx([(3 + 3) / 8, (1 + 1) / 8])


@settings(max_examples=50, deadline=None)
@given(first=st.floats(0, 1), second=st.floats(0, 1), near=st.floats(-5, 5), far=st.floats(-5, 5))
def test_a_surer_and_nearer_picture_is_never_less_familiar(first, second, near, far):
    generator = np.random.default_rng(0)
    table = FamiliarityTable(np.sort(generator.random(50)), np.sort(generator.normal(size=50)))
    (first, second), (near, far) = sorted((first, second)), sorted((near, far))
    worse, better = table.scores(np.array([first, second]), np.array([far, near]))
    assert worse <= better
