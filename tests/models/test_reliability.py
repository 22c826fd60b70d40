import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics import calibration_error, reliability_bins


def planted(accuracy, confidence, num_pictures=20_000, seed=1):
    """Equal confidences; the share `accuracy` of the pictures is right."""
    hits = np.random.default_rng(seed).random(num_pictures) < accuracy
    return np.full(num_pictures, confidence), hits


def error_of(confidence, hits, plants=None):
    return calibration_error(confidence, hits, np.arange(len(hits)) if plants is None else plants)


@pytest.mark.parametrize(("accuracy", "confidence"), [(0.7, 0.7), (0.6, 0.9), (0.95, 0.8)])
def test_the_error_is_the_constructed_one(accuracy, confidence):
    assert error_of(*planted(accuracy, confidence)).value == pytest.approx(abs(accuracy - confidence), abs=0.01)


def test_overconfident_and_underconfident_bins_do_not_cancel():
    confidence, hits = (np.concatenate(pair) for pair in zip(planted(0.6, 0.9), planted(0.8, 0.55), strict=True))
    assert error_of(confidence, hits).value == pytest.approx((0.3 + 0.25) / 2, abs=0.01)


def test_a_certain_right_answer_has_no_error():
    found = error_of(np.array([1.0]), np.array([True]))
    assert (found.value, found.interval_95) == (0.0, (0.0, 0.0))


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


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_the_interval_contains_the_figure_and_stays_within_0_and_1(pictures):
    confidence, hits = (np.array(column) for column in zip(*pictures, strict=True))
    found = error_of(confidence, hits, np.arange(len(hits)) // 2 * 3)
    low, high = found.interval_95
    assert 0 <= low <= found.value <= high <= 1


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_the_bins_hold_every_picture_once_and_give_the_error(pictures):
    confidence, hits = (np.array(column) for column in zip(*pictures, strict=True))
    bins = reliability_bins(confidence, hits)
    assert sum(each.num_pictures for each in bins) == len(hits)
    assert all(each.low - 1e-9 <= each.confidence <= each.low + 1 / 15 + 1e-9 for each in bins)
    gaps = sum(each.num_pictures * abs(each.confidence - each.accuracy) for each in bins)
    assert error_of(confidence, hits).value == pytest.approx(gaps / len(hits), abs=1e-9)
