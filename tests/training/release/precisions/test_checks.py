"""What is released and what is not."""

import numpy as np
import pytest

from models.errors import BundleError
from training.evaluation.split_metrics import Answers
from training.release.precisions.checks import (
    agreement_gate,
    gate_in_words,
    loss_gates,
    overflow_gate,
    parity_gate,
    require_parity,
    rounding_gate,
    size_gate,
    speed_gate,
    top1_loss,
)
from training.release.precisions.paired import paired_loss
from training.release.precisions.speed import Speedup


def answers(named, labels=None):
    """Answers over five taxa that name the taxa given."""
    taxa = np.full((len(named), 5), 0.1)
    taxa[np.arange(len(named)), named] = 0.6
    labels = np.zeros(len(named), dtype=np.int64) if labels is None else np.asarray(labels)
    return Answers(np.arange(len(named)), taxa, taxa, labels, labels)


def loss(total, lost, won):
    first, second = np.ones(total, dtype=bool), np.ones(total, dtype=bool)
    second[:lost] = False
    first[lost : lost + won] = False
    return paired_loss(first, second)


@pytest.mark.parametrize(("total", "lost", "won", "passed"), [
    (272, 0, 0, False), (765, 0, 0, True), (5000, 20, 20, True), (5000, 40, 20, False), (5000, 5, 60, True),
])  # fmt: skip
def test_a_loss_passes_if_it_is_surely_under_half_a_point(total, lost, won, passed):
    (gate,) = loss_gates([("test", loss(total, lost, won))])
    assert gate.passed == passed
    assert (gate.value < gate.limit) == passed
    assert (gate.limit, gate.at_least, gate.num_pictures) == (0.005, False, total)
    assert "upper end of the paired 95 % interval (Tango 1998): test" in gate.name


@pytest.mark.parametrize("order", [1, -1])
def test_many_drawn_pictures_decide_unless_few_photographs_contradict_them(order):
    drawn, photographs, bad = (
        ("drawn", loss(5000, 2, 2)),
        ("photographs", loss(272, 3, 1)),
        ("photographs", loss(272, 20, 1)),
    )
    gates = loss_gates([drawn, photographs][::order])
    assert all(gate.passed for gate in gates)
    ends = {gate.name.rpartition(": ")[2]: gate.name for gate in gates}
    assert "upper end" in ends["drawn"]
    assert "lower end" in ends["photographs"]
    assert [gate.passed for gate in loss_gates([drawn, bad])] == [True, False]
    assert [gate.passed for gate in loss_gates([("drawn", loss(5000, 100, 2)), photographs])] == [False, True]


def test_the_loss_counts_right_answers_and_not_other_wrong_ones():
    labels = [0, 1, 2, 3]
    found = top1_loss(answers([0, 2, 2, 4], labels), answers([0, 1, 2, 0], labels))
    assert (found.num_lost, found.num_won) == (1, 0)


@pytest.mark.parametrize(("ratio", "passed"), [(1.249, False), (1.25, True), (1.4, True)])
def test_int8_must_be_a_quarter_faster(ratio, passed):
    gate = speed_gate(Speedup(ratio, fast_ms=1.0, slow_ms=ratio, num_pairs=40))
    assert (gate.passed, gate.value, gate.limit, gate.at_least) == (passed, ratio, 1.25, True)


def test_int8_must_be_smaller():
    assert size_gate(30, 100).passed
    assert size_gate(30, 100).value == 0.3
    assert not size_gate(101, 100).passed


def test_fp16_may_disagree_once_in_a_thousand_over_all_pictures():
    single = [answers([0] * 600), answers([1] * 400)]
    one, two = [0] * 600, [0] * 600
    one[5] = two[5] = two[6] = 1
    assert agreement_gate([answers(one), answers([1] * 400)], single).passed
    gate = agreement_gate([answers(two), answers([1] * 400)], single)
    assert (gate.passed, gate.value, gate.limit, gate.at_least, gate.num_pictures) == (False, 0.998, 0.999, True, 1000)


def test_an_answer_that_is_no_number_fails():
    sound, overflown = np.zeros((6, 5), dtype=np.float32), np.zeros((4, 5), dtype=np.float32)
    assert overflow_gate([sound, overflown]).passed
    overflown[1, 2], overflown[3] = np.nan, np.inf
    gate = overflow_gate([sound, overflown])
    assert (gate.passed, gate.value, gate.limit, gate.num_pictures) == (False, 2, 0, 10)


def test_parity_is_required_and_rounding_only_told():
    exact = np.array([[2.0, 0.0]], dtype=np.float32)
    other = np.array([[0.0, 2.0]], dtype=np.float32)
    assert rounding_gate(other, exact).passed
    require_parity([parity_gate(exact, exact, 1e-3), rounding_gate(other, exact)])
    with pytest.raises(
        BundleError, match=r"does not answer as PyTorch does .*7\.62e-01 on 1 pictures; expected at most 1e-03"
    ):
        require_parity([parity_gate(other, exact, 1e-3)])


def test_logits_that_are_no_numbers_are_no_parity():
    exact = np.array([[2.0, 0.0]], dtype=np.float32)
    assert not parity_gate(np.full((1, 2), np.nan, dtype=np.float32), exact, 1e-3).passed


def test_a_gate_says_which_way_its_bound_goes():
    assert "0.3 (at most 1)" in gate_in_words(size_gate(30, 100))
    assert gate_in_words(size_gate(101, 100)).startswith("FAILED")
    assert "2 (at least 1.25, 40 pictures)" in gate_in_words(speed_gate(Speedup(2.0, 1.0, 2.0, 40)))
