"""Shares, macro means and calibration errors, with intervals that cover the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics import (
    calibration_error,
    confusion_pairs,
    effective_number,
    macro_top1,
    negative_log_likelihood,
    reliability_bins,
    share,
    top_k_hits,
)
from tests.make import from_table


@from_table  # Wilson 1927 without continuity correction, as R's binom.confint(method="wilson") gives them
def test_a_share_has_its_wilson_interval(hits, total, low, high):
    found = share(hits, total)
    assert (found.value, found.num_pictures) == (hits / total, total)
    assert found.interval_95 == pytest.approx((low, high), abs=1e-4)


def test_a_share_in_words_has_its_interval_and_its_number():
    assert str(share(2848, 3642)) == "78.2% (76.8% to 79.5%) of 3,642"


@from_table
def test_pictures_of_one_plant_count_as_one(plants, number):
    assert effective_number(np.array(plants)) == pytest.approx(number)


@from_table
def test_the_right_class_is_among_the_best_k_and_ties_count_against_it(scores, label, hits):
    found = [top_k_hits(np.array([scores]), np.array([label]), k).tolist() for k in range(1, len(scores) + 1)]
    assert found == [[hit] for hit in hits]


@pytest.mark.parametrize("label", [0, 1])
def test_nan_scores_are_never_right(label):
    labels = np.array([label])
    for scores in ([np.nan, np.nan, np.nan], [np.nan, 0.0, 0.0], [1.0, 2.0, np.nan]):
        assert not top_k_hits(np.array([scores]), labels, 1).any()


def test_every_class_counts_the_same_in_the_macro_mean():
    hits = np.array([True] * 9 + [False] + [False, False])
    labels = np.array([0] * 10 + [7] * 2)
    mean, (low, high) = macro_top1(hits, labels, np.arange(12))
    assert mean == pytest.approx(0.45)
    assert 0 <= low < mean < high <= 1


@pytest.mark.parametrize("per_class", [1, 3, 15, 100])
@from_table
def test_the_macro_interval_covers_the_truth_at_least_as_often_as_it_says(rates, per_class):
    random, covered = np.random.default_rng(0), 0
    labels = np.repeat(np.arange(20), per_class)
    rate_of_class, plants = np.linspace(*rates, 20), np.arange(len(labels))
    for _ in range(1000):
        _, (low, high) = macro_top1(random.random(len(labels)) < rate_of_class[labels], labels, plants)
        covered += low <= rate_of_class.mean() <= high
    assert covered / 1000 > 0.93


def test_the_negative_log_likelihood_is_in_nats_and_finite():
    assert negative_log_likelihood(np.array([0.5, 0.9])) == pytest.approx((np.log(2) - np.log(0.9)) / 2)
    assert np.isfinite(negative_log_likelihood(np.array([0.0])))


def test_the_most_frequent_mistakes_come_first():
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    named = np.array([1, 1, 0, 2, 1, 0, 0])
    assert confusion_pairs(named, labels, most=2) == [(0, 1, 2), (2, 0, 2)]
    assert confusion_pairs(named, labels, most=9)[-1] == (1, 2, 1)
    assert confusion_pairs(labels, labels, most=9) == []


def planted(accuracy, confidence, num_pictures=20_000, seed=1):
    """Equal confidences; the share `accuracy` of the pictures is right."""
    hits = np.random.default_rng(seed).random(num_pictures) < accuracy
    return np.full(num_pictures, confidence), hits


def error_of(confidence, hits, plants=None):
    return calibration_error(confidence, hits, np.arange(len(hits)) if plants is None else plants)


@from_table
def test_the_error_is_the_constructed_one(accuracy, confidence):
    assert error_of(*planted(accuracy, confidence)).value == pytest.approx(abs(accuracy - confidence), abs=0.01)


def test_overconfident_and_underconfident_bins_do_not_cancel():
    confidence, hits = (np.concatenate(pair) for pair in zip(planted(0.6, 0.9), planted(0.8, 0.55), strict=True))
    assert error_of(confidence, hits).value == pytest.approx((0.3 + 0.25) / 2, abs=0.01)


def test_the_interval_covers_the_true_error_of_a_miscalibrated_network():
    covered = 0
    for seed in range(60):
        low, high = error_of(*planted(0.7, 0.9, num_pictures=300, seed=seed)).interval_95
        covered += low <= 0.2 <= high
    assert covered >= 53


def test_the_interval_is_wider_when_many_pictures_show_the_same_plants():
    confidence, hits = planted(0.7, 0.9, num_pictures=40)
    single = error_of(confidence, hits).interval_95
    repeated = error_of(np.tile(confidence, 9), np.tile(hits, 9), np.tile(np.arange(40), 9)).interval_95
    unaware = error_of(np.tile(confidence, 9), np.tile(hits, 9)).interval_95
    assert np.subtract(*repeated[::-1]) == pytest.approx(np.subtract(*single[::-1]), rel=0.01)
    assert np.subtract(*unaware[::-1]) < 0.5 * np.subtract(*repeated[::-1])


def test_a_gap_that_all_pictures_have_has_no_interval_however_many_pictures_a_plant_has():
    found = error_of(np.full(12, 0.9), np.zeros(12, bool), np.repeat([1, 2, 3, 4], [9, 1, 1, 1]))
    assert found.interval_95 == pytest.approx((0.9, 0.9))


# Confidences, and whether each is right.
PICTURES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60).map(
    lambda pictures: [np.array(column) for column in zip(*pictures, strict=True)]
)


@given(PICTURES)
def test_the_interval_contains_the_figure_and_stays_within_0_and_1(pictures):
    confidence, hits = pictures
    found = error_of(confidence, hits, np.arange(len(hits)) // 2 * 3)
    low, high = found.interval_95
    assert 0 <= low <= found.value <= high <= 1


@given(PICTURES)
def test_the_bins_hold_every_picture_once_and_give_the_error(pictures):
    confidence, hits = pictures
    bins = reliability_bins(confidence, hits)
    assert sum(each.num_pictures for each in bins) == len(hits)
    assert all(each.low - 1e-9 <= each.confidence <= each.low + 1 / 15 + 1e-9 for each in bins)
    gaps = sum(each.num_pictures * abs(each.confidence - each.accuracy) for each in bins)
    assert error_of(confidence, hits).value == pytest.approx(gaps / len(hits), abs=1e-9)
