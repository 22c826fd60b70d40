import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.rank_scores import RankScores
from training.evaluation.risk_coverage import risk_coverage

ANSWERS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=300)


def curve(answers):
    score, right = (np.array(column) for column in zip(*answers, strict=True))
    return risk_coverage(RankScores(score, right))


def test_the_surest_are_named_first():
    found = curve([(0.2, False), (0.9, True), (0.8, True), (0.3, True)])
    assert found.coverage == [0.25, 0.5, 0.75, 1.0]
    assert found.risk == [0, 0, 0, 0.25]
    assert found.area == pytest.approx(0.25 / 4)


def test_equal_scores_have_the_same_risk_in_any_order():
    assert curve([(0.5, True), (0.5, False)]).risk == [0.5, 0.5]
    assert curve([(0.5, False), (0.5, True)]).area == 0.5


@given(ANSWERS)
def test_at_full_coverage_the_risk_is_the_share_of_wrong_names(answers):
    found = curve(answers)
    assert found.coverage[-1] == 1
    assert found.risk[-1] == pytest.approx(np.mean([not right for _, right in answers]))
    assert 0 <= found.area <= 1
    assert len(found.risk) == len(found.coverage) <= 100


@given(ANSWERS)
def test_a_better_order_has_a_smaller_area(answers):
    perfect = [(float(right), right) for _, right in answers]
    assert curve(perfect).area <= curve(answers).area + 1e-12
