"""Which run is next: pure rules, so every case is written down."""

import pytest

from serving.scheduling.policies import BatchPlan, CorePlan, FixedPlan, bucket_of


@pytest.mark.parametrize(
    ("waiting", "running", "alone", "expected"),
    [
        (1, (), True, (1, "wide")),
        (1, (), False, (1, "narrow")),
        (3, (), False, (1, "narrow")),
        (1, ("narrow",), True, (1, "narrow")),
        (1, ("narrow", "narrow"), False, None),
        (5, ("wide",), False, None),
        (0, (), True, None),
    ],
)
def test_a_cpu_runs_wide_when_alone_and_one_picture_a_core_when_busy(waiting, running, alone, expected):
    assert CorePlan(2).choose(waiting, running, alone=alone) == expected


def test_a_single_core_has_no_wide_lane():
    assert CorePlan(1).choose(1, (), alone=True) == (1, "narrow")
    assert "alone" not in CorePlan(1).describe()


def test_fixed_runs_are_as_many_as_were_asked_for():
    plan = FixedPlan(num_workers=2, num_threads=3)
    assert plan.choose(4, ("narrow",), alone=False) == (1, "narrow")
    assert plan.choose(4, ("narrow", "narrow"), alone=False) is None


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [(1, (), 1), (5, (), 5), (40, (), 32), (40, ("narrow",), 32), (40, ("narrow", "narrow"), None)],
)
def test_a_gpu_takes_whatever_waits_up_to_its_largest_bucket(waiting, running, expected):
    choice = BatchPlan().choose(waiting, running, alone=False)
    assert (None if choice is None else choice.num_pictures) == expected


@pytest.mark.parametrize(("pictures", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (17, 32), (32, 32)])
def test_a_batch_is_filled_up_to_the_smallest_bucket_that_holds_it(pictures, bucket):
    assert bucket_of(pictures, BatchPlan().buckets) == bucket
