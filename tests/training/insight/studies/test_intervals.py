import pytest

from training.insight.studies.intervals import Interval, mean_interval, points_interval, ratio_interval


def test_intervals_follow_students_t():
    points = mean_interval([5.0, 6.0, 7.0])  # t of 2 degrees of freedom: 4.302653; standard error 1/sqrt(3)
    assert (points.mean, points.low, points.high) == pytest.approx((6, 6 - 2.484138, 6 + 2.484138), abs=1e-5)
    times = ratio_interval([2.0, 4.0])
    assert times.mean == pytest.approx(8**0.5)
    assert times.low * times.high == pytest.approx(8)
    assert mean_interval([5.0]) == Interval(5.0, None, None, 1)


def test_few_pictures_widen_the_interval_even_if_all_seeds_agree():
    certain, few, many = (points_interval([0.0, 0.0], count) for count in (10**9, 3, 10_000))
    assert certain.high == pytest.approx(0, abs=1e-3)
    assert few.high == pytest.approx(100 * 1.959964 / 5)  # one picture in five changed, at half a picture a cell
    assert many.high < 0.03
    wide = points_interval([6.0, 6.0, 6.0], 1000)  # 60.5 pictures better, 0.5 worse
    assert wide.high - 6 == pytest.approx(196 * (61 - 60**2 / 1002) ** 0.5 / 1002, rel=1e-3)
