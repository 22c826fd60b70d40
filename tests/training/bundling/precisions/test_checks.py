"""Release checks: which networks pass."""

import numpy as np
import pytest

from models.errors import BundleError
from models.session import NetworkOutput
from tests.training.small import make_taxonomy
from training.bundling.precisions.checks import (
    agreement_check,
    describe_check,
    loss_checks,
    overflow_check,
    parity_check,
    require_parity,
    rounding_check,
    size_check,
    speed_check,
    top1_loss,
)
from training.bundling.precisions.paired import paired_loss, tango_interval
from training.bundling.precisions.speed import Speedup
from training.evaluation.predictions import calibrated_predictions


def predictions(named, labels=None):
    """Predictions over five taxa, with these taxa as the most likely."""
    logits = 2 * np.eye(5, dtype=np.float32)[named]
    labels = np.zeros(len(named), dtype=np.int64) if labels is None else np.asarray(labels)
    return calibrated_predictions(logits, labels, np.arange(len(named)), make_taxonomy(5), temperature=1.0)


def loss(total, lost, won):
    first, second = np.ones(total, dtype=bool), np.ones(total, dtype=bool)
    second[:lost] = False
    first[lost : lost + won] = False
    return paired_loss(first, second)


@pytest.mark.parametrize(("total", "lost", "won", "passed"), [
    (272, 0, 0, False), (765, 0, 0, True), (5000, 20, 20, True), (5000, 40, 20, False), (5000, 5, 60, True),
])  # fmt: skip
def test_a_loss_passes_if_its_interval_ends_below_half_a_point(total, lost, won, passed):
    (check,) = loss_checks([("test", loss(total, lost, won))])
    assert check.passed == passed
    assert (check.value < check.limit) == passed
    assert (check.limit, check.at_least, check.num_pictures) == (0.005, False, total)
    assert "upper end of the paired 95 % interval (Tango 1998): test" in check.name


@pytest.mark.parametrize("order", [1, -1])
def test_the_largest_set_decides_unless_a_smaller_one_contradicts_it(order):
    many, few, contradicting = (
        ("drawn", loss(5000, 2, 2)),
        ("photographs", loss(272, 3, 1)),
        ("photographs", loss(272, 20, 1)),
    )
    checks = loss_checks([many, few][::order])
    assert all(check.passed for check in checks)
    ends = {check.name.rpartition(": ")[2]: check.name for check in checks}
    assert "upper end" in ends["drawn"]
    assert "lower end" in ends["photographs"]
    assert [check.passed for check in loss_checks([many, contradicting])] == [True, False]
    assert [check.passed for check in loss_checks([("drawn", loss(5000, 100, 2)), few])] == [False, True]


def test_the_loss_counts_right_answers_and_not_other_wrong_ones():
    labels = [0, 1, 2, 3]
    found = top1_loss(predictions([0, 2, 2, 4], labels), predictions([0, 1, 2, 0], labels))
    assert (found.value, found.interval_95) == (0.25, tango_interval(1, 0, 4))


@pytest.mark.parametrize(("ratio", "passed"), [(1.249, False), (1.25, True), (1.4, True)])
def test_int8_must_be_a_quarter_faster(ratio, passed):
    check = speed_check(Speedup(ratio, fast_ms=1.0, slow_ms=ratio, num_pairs=40))
    assert (check.passed, check.value, check.limit, check.at_least) == (passed, ratio, 1.25, True)


def test_int8_must_be_smaller():
    assert size_check(30, 100).passed
    assert size_check(30, 100).value == 0.3
    assert not size_check(101, 100).passed


def test_fp16_may_disagree_once_in_a_thousand_over_all_pictures():
    single = [predictions([0] * 600), predictions([1] * 400)]
    one, two = [0] * 600, [0] * 600
    one[5] = two[5] = two[6] = 1
    assert agreement_check([predictions(one), predictions([1] * 400)], single).passed
    check = agreement_check([predictions(two), predictions([1] * 400)], single)
    assert (check.passed, check.value, check.limit, check.at_least, check.num_pictures) == (
        False,
        0.998,
        0.999,
        True,
        1000,
    )


@pytest.mark.parametrize("name", NetworkOutput._fields)
def test_outputs_that_are_not_finite_fail(name):
    finite, other = (NetworkOutput(np.zeros((num, 5), "f4"), np.zeros((num, 2), "f4")) for num in (6, 4))
    assert overflow_check([finite, other]).passed
    overflowed = getattr(other, name)
    overflowed[1, 1], overflowed[3] = np.nan, np.inf
    check = overflow_check([finite, other])
    assert (check.passed, check.value, check.limit, check.num_pictures) == (False, 2, 0, 10)


def test_parity_is_required_and_rounding_only_recorded():
    exact = np.array([[2.0, 0.0]], dtype=np.float32)
    other = np.array([[0.0, 2.0]], dtype=np.float32)
    assert rounding_check(other, exact, "data").passed
    require_parity([parity_check(exact, exact, 1e-3, "data"), rounding_check(other, exact, "data")])
    with pytest.raises(
        BundleError, match=r"and PyTorch give different probabilities .*7\.62e-01 on 1 pictures; expected at most 1e-03"
    ):
        require_parity([parity_check(other, exact, 1e-3, "data")])


def test_parity_is_that_of_the_picture_that_differs_most():
    exact, other = np.zeros((2, 2), dtype=np.float32), np.zeros((2, 2), dtype=np.float32)
    other[1, 0] = np.log(0.51 / 0.49)  # a probability of 0.51, of one picture
    check = parity_check(other, exact, 0.006, "data")
    assert (check.value, check.passed) == (pytest.approx(0.01, abs=1e-6), False)


def test_nan_logits_fail_the_parity_check():
    exact = np.array([[2.0, 0.0]], dtype=np.float32)
    assert not parity_check(np.full((1, 2), np.nan, dtype=np.float32), exact, 1e-3, "data").passed


def test_the_description_says_whether_the_limit_is_a_minimum_or_maximum():
    assert "0.3 (at most 1)" in describe_check(size_check(30, 100))
    assert describe_check(size_check(101, 100)).startswith("FAILED")
    assert "2 (at least 1.25, 40 pictures)" in describe_check(speed_check(Speedup(2.0, 1.0, 2.0, 40)))
