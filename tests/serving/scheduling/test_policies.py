"""Scheduling policies choose the next run."""

import pytest

from serving.scheduling.networks import CpuPolicy, DynamicBatchPolicy, FixedPolicy, padded_batch_size


@pytest.mark.parametrize(
    ("waiting", "running", "alone", "expected"),
    [
        (1, (), True, (1, "latency")),
        (1, (), False, (1, "throughput")),
        (3, (), False, (1, "throughput")),
        (1, ("throughput",), True, (1, "throughput")),
        (1, ("throughput", "throughput"), False, None),
        (5, ("latency",), False, None),
        (0, (), True, None),
    ],
)
def test_cpu_uses_all_cores_for_a_single_picture_and_one_core_each_under_load(waiting, running, alone, expected):
    assert CpuPolicy(2).choose(waiting, running, alone=alone) == expected


def test_single_core_has_no_latency_mode():
    assert CpuPolicy(1).choose(1, (), alone=True) == (1, "throughput")
    assert "alone" not in CpuPolicy(1).describe()


def test_fixed_policy_limits_the_number_of_runs():
    policy = FixedPolicy(num_workers=2, num_threads=3)
    assert policy.choose(4, ("throughput",), alone=False) == (1, "throughput")
    assert policy.choose(4, ("throughput", "throughput"), alone=False) is None


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [(1, (), 1), (5, (), 5), (40, (), 32), (40, ("throughput",), 32), (40, ("throughput", "throughput"), None)],
)
def test_gpu_batch_takes_the_queue_up_to_the_largest_batch_size(waiting, running, expected):
    choice = DynamicBatchPolicy().choose(waiting, running, alone=False)
    assert (None if choice is None else choice.num_pictures) == expected


@pytest.mark.parametrize(("pictures", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (17, 32), (32, 32)])
def test_batch_is_padded_to_the_smallest_batch_size_that_holds_it(pictures, size):
    assert padded_batch_size(pictures, DynamicBatchPolicy().batch_sizes) == size
