import msgspec
import pytest

from tests.training.insight.studies.planted import epoch
from tests.training.insight.studies.planted_speedups import EVERY_ONE_PAYS, planted, run
from training.insight.studies.figures import epoch_s, known, pictures_per_s, warm_up_s
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.speedups import Speedups


def test_arms_are_compared_within_their_rounds():
    measured = planted(rounds=(0.5, 1.0, 2.0))  # a machine with other load
    amp = measured.times("amp")
    assert (amp.mean, amp.low, amp.high) == pytest.approx((2, 2, 2))
    assert known(pictures_per_s, measured.of("amp")) == pytest.approx([100, 200, 400])


def test_the_product_of_parts_leaves_out_tf32_with_mixed_precision():
    measured = planted()
    assert measured.product_of_parts("all") == pytest.approx(dict.fromkeys(range(3), 3.6036))
    assert measured.share_of_product("all").mean == pytest.approx(1)
    assert planted({"baseline": 100.0, "amp": 200.0, "all": 300.0}).product_of_parts("all") == {}


def test_the_difference_between_the_equal_arms_is_the_tolerance():
    again = {("baseline_again", seed): 1.06 for seed in range(3)}
    measured = planted(jitter=again)
    assert planted().tolerance == pytest.approx(0.02)
    assert measured.tolerance == pytest.approx(0.06)
    assert measured.is_more(measured.times("workers"))
    assert not measured.is_more(measured.times("channels_last"))


def test_one_round_shows_no_difference():
    measured = planted(rounds=(1.0,))
    assert measured.num_rounds == 1
    assert not any(measured.is_more(measured.times(name)) for name in EVERY_ONE_PAYS)


def test_an_interrupted_run_has_a_speed_and_no_warm_up():
    """Of four epochs, the third went on in another process."""
    epochs = [epoch(1, 12.0, 83.0), epoch(2, 10.0, 100.0), epoch(3, 60.0, 20.0), epoch(4, 10.0, 100.0)]
    epochs[2] = msgspec.structs.replace(epochs[2], warm_up=True)
    broken = ArmResult(Arm("baseline", (), ""), 0, epochs, num_starts=2)
    whole = run("baseline", 1, 100.0, first_epoch_s=3.0)
    assert Speedups([broken], "cpu").median("baseline", warm_up_s) is None
    measured = Speedups([broken, whole], "cpu")
    assert [measured.median("baseline", figure) for figure in (epoch_s, warm_up_s)] == [10.0, 3.0]
