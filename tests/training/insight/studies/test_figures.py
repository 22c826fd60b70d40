import pytest

from tests.training.insight.studies.planted import SEEDS, result
from training.insight.studies.figures import (
    equal_time_epochs,
    known,
    memory_gb,
    of_arm,
    pairs,
    pictures_per_s,
    points_more,
    times,
    top1_percent,
)
from training.insight.studies.results import Arm

FAST, SLOW = Arm("fast", (), ""), Arm("slow", (), "")


def test_arms_are_compared_seed_by_seed():
    ours = [result(FAST, seed, top1=50 + 10 * seed) for seed in SEEDS]
    theirs = [result(SLOW, seed, top1=48 + 10 * seed) for seed in reversed(SEEDS)]
    more = points_more(ours, theirs)
    assert more.mean == pytest.approx(2)
    assert more.high - more.low < 1


def test_a_seed_that_one_arm_lacks_does_not_count():
    ours = [result(FAST, seed, speed=300) for seed in SEEDS]
    theirs = [result(SLOW, 0, speed=100), result(SLOW, 1, error="error (x): lost"), result(SLOW, 5)]
    assert pairs(ours, theirs, pictures_per_s) == {0: (300, 100)}
    assert times(ours, theirs, pictures_per_s).mean == pytest.approx(3)
    assert times(ours, theirs[1:], pictures_per_s) is None
    assert points_more(ours, theirs[1:]) is None


def test_the_accuracy_of_few_pictures_is_less_certain():
    many, few = (
        points_more(*([result(arm, seed, judged=judged) for seed in SEEDS] for arm in (FAST, SLOW)))
        for judged in (10_000, 100)
    )
    assert (many.mean, few.mean) == (0, 0)
    assert few.high > 50 * many.high


def test_a_failed_run_has_no_figures():
    failed = result(FAST, 0, error="error (x): lost")
    assert known(pictures_per_s, [failed]) == known(memory_gb, [failed]) == known(top1_percent, [failed]) == []


def test_the_runs_of_an_arm_come_by_seed():
    runs = [result(FAST, 2), result(SLOW, 0), result(FAST, 1)]
    assert [run.seed for run in of_arm(runs, "fast")] == [1, 2]


def test_equal_time_gives_an_arm_the_epochs_that_fit():
    timed = [result(FAST, seed, speed=300) for seed in SEEDS]  # 3.3 s an epoch after the first
    assert equal_time_epochs(timed, 40.0) == 12
    assert equal_time_epochs(timed, 1.0) == 1
