import pytest

from training.insight.studies.claims import Claim, judge
from training.insight.studies.intervals import Interval, points_interval

POINTS = Claim("planted", "5 to 7 points", 5, 7, "points")
TIMES = Claim("planted", "3 times", 2.7, 3.3, "speed")


@pytest.mark.parametrize(
    ("claim", "measured", "word"),
    [
        (POINTS, (6.0, 5.2, 6.8), "confirmed"),
        (POINTS, (6.0, 2.6, 9.4), "confirmed"),
        (POINTS, (6.0, 2.4, 9.6), "undecided"),  # the interval reaches below half the claim
        (POINTS, (4.8, 4.4, 5.2), "undecided"),
        (POINTS, (3.0, 1.0, 4.9), "smaller"),
        (POINTS, (9.0, 7.1, 10.9), "larger"),
        (POINTS, (0.5, -1.0, 2.0), "refuted"),
        (POINTS, (-3.0, -4.0, -2.0), "refuted"),
        (POINTS, (3.0, -4.0, 10.0), "undecided"),
        (POINTS, (6.0, None, None), "undecided"),
        (TIMES, (3.0, 2.9, 3.1), "confirmed"),
        (TIMES, (1.5, 1.2, 1.9), "smaller"),
        (TIMES, (1.0, 0.8, 1.2), "refuted"),
        (TIMES, (5.0, 4.5, 5.6), "larger"),
    ],
)
def test_a_verdict_follows_from_the_interval(claim, measured, word):
    assert judge(claim, Interval(*measured, num_values=3)) == word


def test_few_pictures_confirm_nothing_even_if_all_seeds_agree():
    assert judge(POINTS, points_interval([6.0, 6.0, 6.0], 10_000)) == "confirmed"
    assert judge(POINTS, points_interval([6.0, 6.0, 6.0], 50)) == "undecided"
