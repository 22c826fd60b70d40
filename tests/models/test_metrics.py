import numpy as np
import pytest

from models.metrics import (
    confusion_pairs,
    macro_top1,
    negative_log_likelihood,
    share,
    top_k_hits,
)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    # Wilson 1927 without continuity correction, as R's binom.confint(method="wilson") gives them.
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_a_share_has_its_wilson_interval(hits, total, low, high):
    found = share(hits, total)
    assert (found.value, found.num_pictures) == (hits / total, total)
    assert found.interval_95 == pytest.approx((low, high), abs=1e-4)


def test_the_right_class_is_among_the_best_k():
    scores = np.array([[0.1, 0.6, 0.3], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5]])
    labels = np.array([1, 1, 0])
    assert top_k_hits(scores, labels, 1).tolist() == [True, False, False]
    assert top_k_hits(scores, labels, 2).tolist() == [True, True, False]
    assert top_k_hits(scores, labels, 3).tolist() == [True, True, True]


def test_ties_count_against_the_right_class():
    assert top_k_hits(np.array([[0.4, 0.4, 0.2]]), np.array([0]), 1).tolist() == [False]
    assert top_k_hits(np.array([[0.4, 0.4, 0.2]]), np.array([0]), 2).tolist() == [True]
    assert top_k_hits(np.full((1, 10), 0.1), np.array([3]), 5).tolist() == [False]


@pytest.mark.parametrize("label", [0, 1])
def test_nan_scores_are_never_right(label):
    labels = np.array([label])
    for scores in ([np.nan, np.nan, np.nan], [np.nan, 0.0, 0.0], [1.0, 2.0, np.nan]):
        assert not top_k_hits(np.array([scores]), labels, 1).any()


def test_every_class_counts_the_same_in_the_macro_mean():
    hits = np.array([True] * 9 + [False] + [False, False])
    labels = np.array([0] * 10 + [7] * 2)
    mean, (low, high) = macro_top1(hits, labels)
    assert mean == pytest.approx(0.45)
    assert 0 <= low < mean < high <= 1


@pytest.mark.parametrize("per_class", [1, 3, 15, 100])
@pytest.mark.parametrize("rates", [(0.2, 0.9), (0.5, 0.5), (0.9, 1.0)])
def test_the_macro_interval_covers_the_truth_at_least_as_often_as_it_says(rates, per_class):
    random, covered = np.random.default_rng(0), 0
    labels = np.repeat(np.arange(20), per_class)
    rate_of_class = np.linspace(*rates, 20)
    for _ in range(1000):
        _, (low, high) = macro_top1(random.random(len(labels)) < rate_of_class[labels], labels)
        covered += low <= rate_of_class.mean() <= high
    assert covered / 1000 > 0.93


def test_the_negative_log_likelihood_is_in_nats_and_finite():
    assert negative_log_likelihood(np.array([0.5, 0.9])) == pytest.approx((np.log(2) - np.log(0.9)) / 2)
    assert np.isfinite(negative_log_likelihood(np.array([0.0])))


def test_the_mean_follows_the_weights_of_the_pictures():
    found = negative_log_likelihood(np.array([0.5, 0.9]), np.array([3.0, 1.0]))
    assert found == pytest.approx((3 * np.log(2) - np.log(0.9)) / 4)


def test_the_most_frequent_mistakes_come_first():
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    named = np.array([1, 1, 0, 2, 1, 0, 0])
    assert confusion_pairs(named, labels, most=2) == [(0, 1, 2), (2, 0, 2)]
    assert confusion_pairs(named, labels, most=9)[-1] == (1, 2, 1)
    assert confusion_pairs(labels, labels, most=9) == []
