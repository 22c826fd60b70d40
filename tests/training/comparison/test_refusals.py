import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.comparison.loss import PairedShare
from training.comparison.refusals import reaches_limit


def share(high, loss=0.0):
    return PairedShare(0.8, 0.8 - loss, loss, (-1.0, high), num_pictures=1000, num_plants=1000)


@pytest.mark.parametrize(("high", "refused"), [(0.004999, False), (0.005, True), (0.0051, True), (-0.01, False)])
def test_loss_is_refused_from_half_a_point_on(high, refused):
    assert reaches_limit(share(high)) == refused


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_only_the_upper_end_of_the_interval_decides(high, loss):
    assert reaches_limit(share(high, loss)) == (high >= 0.005)
