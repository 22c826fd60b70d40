import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from training.bundling.features import (
    _whitening,
    distances_to_others,
    familiar_cutoff,
    fit_familiarity,
    fit_features,
)
from training.evaluation.separation import auroc


def draw_features(num_taxa, per_taxon, noise, seed, num_features=40):
    """Features of pictures: their taxon's direction, and noise in all dimensions."""
    directions = np.random.default_rng(7).normal(size=(num_taxa, num_features))
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_taxa), per_taxon)
    return directions[labels] + random.normal(0, noise, (len(labels), num_features)), labels


def draw_others(seed, num_features=40):
    return np.random.default_rng(seed).normal(size=(200, num_features))


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_unseen_pictures_of_known_taxa_are_nearer_than_others(noise):
    """With little noise the training pictures have collapsed, and the unseen ones have more of it."""
    table = fit_features(*draw_features(10, 20, noise, seed=0))
    unseen, _ = draw_features(10, 20, max(noise, 0.4), seed=1)
    assert auroc(-table.distances(unseen), -table.distances(draw_others(2))) > 0.95


def test_the_table_has_one_dimension_less_than_there_are_taxa_and_at_most_256():
    assert fit_features(*draw_features(10, 5, 0.5, seed=0)).basis_FD.shape == (40, 9)
    many = fit_features(*draw_features(300, 2, 0.5, seed=0, num_features=280))
    assert (many.basis_FD.shape, many.mean_TD.shape) == ((280, 256), (300, 256))


def test_after_the_projections_the_covariances_are_the_identity():
    features, labels = draw_features(6, 400, 0.6, seed=0)
    table = fit_features(features, labels)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    reduced = (unit - table.center_F) @ table.basis_FD
    np.testing.assert_allclose(np.cov((reduced * table.whole_D).T, bias=True), np.eye(5), atol=0.01)
    within = reduced @ table.within_DD
    residual = np.concatenate([within[labels == each] - within[labels == each].mean(axis=0) for each in range(6)])
    np.testing.assert_allclose(np.cov(residual.T, bias=True), np.eye(5), atol=0.12)  # 5 % is added to the variances


def test_a_twentieth_of_the_mean_variance_is_added_within_taxa():
    residual = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 2 and 0.5, mean 1.25
    scales = sorted(np.abs(_whitening(residual)).max(axis=0))
    assert scales == pytest.approx([(2 + 0.0625) ** -0.5, (0.5 + 0.0625) ** -0.5])


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3))
def test_few_pictures_give_finite_distances(num_taxa, per_taxon):
    table = fit_features(*draw_features(num_taxa, per_taxon, 0.5, seed=0))
    assert np.isfinite(table.distances(draw_others(1))).all()


@settings(deadline=None, max_examples=10)
@given(st.floats(1e-3, 1e3))
def test_the_length_of_the_features_does_not_matter(length):
    features, labels = draw_features(4, 10, 0.5, seed=0)
    expected = fit_features(features, labels).distances(features)
    np.testing.assert_allclose(
        fit_features(features * length, labels).distances(features / length), expected, rtol=0.01
    )


def test_familiarity_ranks_calibration_plants_from_0_to_1():
    random = np.random.default_rng(0)
    confidence, distance = random.random(100), random.normal(size=100)
    table = fit_familiarity(confidence, distance)
    scores = table.scores(confidence, distance)
    assert scores.mean() == pytest.approx(0.5, abs=0.02)
    assert table.scores(np.array([1.0]), np.array([-9.0])) == 1.0
    assert table.scores(np.array([-0.1]), np.array([9.0])) == 0.0


def test_without_its_taxon_a_plant_is_as_far_as_the_table_of_the_others_says():
    features, labels = draw_features(10, 20, 0.5, seed=0)
    table = fit_features(features, labels)
    unseen, taxa = draw_features(10, 3, 0.5, seed=1)
    found = distances_to_others(table, np.arange(10), unseen, taxa)
    third = replace(table, mean_TD=np.delete(table.mean_TD, 3, axis=0))
    assert found[taxa == 3] == pytest.approx(third.distances(unseen[taxa == 3]))
    assert auroc(found, table.distances(unseen)) > 0.95


def test_the_cutoff_of_familiarity_lies_where_90_percent_of_strangers_are_stopped():
    strange = np.linspace(0, 0.5, 101)
    cut = familiar_cutoff(np.linspace(0.4, 1, 1000), strange)
    assert (strange >= cut).mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("strange", "kept"), [(np.ones(100), 0.85), (np.zeros(100), 0.95), (np.zeros(0), 0.95)])
def test_the_cutoff_of_familiarity_keeps_85_to_95_percent_of_known_plants(strange, kept):
    known = np.random.default_rng(0).random(10_000)
    assert (known >= familiar_cutoff(known, strange)).mean() == pytest.approx(kept, abs=0.001)
