import msgspec
import pytest

from tests.training.insight.tuning.stand_in import TINY
from training.insight.tuning.rates import rates_for

SCHEDULE = msgspec.structs.replace(TINY.schedule, batch_size=16, backbone_lr=3e-5, head_lr=9e-5)


def test_rates_scale_with_the_square_root_of_the_batch_size():
    rates = rates_for(SCHEDULE, 64)
    assert (rates.backbone_lr, rates.head_lr) == pytest.approx((6e-5, 18e-5))
    assert "Malladi" in rates.reason
    assert "16" in rates.reason
    assert "64" in rates.reason


def test_accumulated_pictures_count():
    accumulating = msgspec.structs.replace(SCHEDULE, accumulate=4)
    rates = rates_for(accumulating, 64)
    assert (rates.backbone_lr, rates.head_lr) == (3e-5, 9e-5)
    assert "are the recipe's" in rates.reason
