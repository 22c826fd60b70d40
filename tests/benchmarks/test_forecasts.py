import msgspec
import pytest

from benchmarks.gpu.forecasts import FORECASTS, compare, markdown
from training.machine import Gpu, this_machine

H100 = msgspec.structs.replace(this_machine(), gpus=(Gpu("NVIDIA H100 80GB HBM3", 85.0),))


@pytest.mark.parametrize(
    ("per_s", "off", "word"),
    [
        (420.0, 0.0, "as forecast"),
        (520.0, 0.0, "as forecast"),
        (336.0, -0.2, "as forecast"),
        (210.0, -0.5, "-50%, to be explained"),
        (780.0, 0.5, "+50%, to be explained"),
    ],
)
def test_what_is_off_by_more_than_a_fifth_must_be_explained(per_s, off, word):
    (compared,) = compare({"fp16, batch 16": per_s, "not forecast": 1.0}, H100)
    assert (compared.forecast, compared.off) == ((420, 520), pytest.approx(off))
    assert word in markdown([compared])


def test_another_card_has_no_forecast():
    other = msgspec.structs.replace(H100, gpus=(Gpu("NVIDIA T4", 16.0),))
    assert compare({"fp16, batch 16": 1.0}, other) == []
    assert compare({"fp16, batch 16": 1.0}, msgspec.structs.replace(H100, gpus=())) == []
    assert markdown([]) == ""


def test_both_cards_have_forecasts_of_the_same_figures():
    assert set(FORECASTS["H100"]) == set(FORECASTS["H200"])
    assert all(0 < least < most for known in FORECASTS.values() for least, most in known.values())
