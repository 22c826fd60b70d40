import msgspec
import pytest

from tests.training.insight.studies.optimizations.planted import EVERY_ONE_PAYS, planted, run
from tests.training.insight.studies.planted import epoch
from training.insight.studies.optimizations.figures import PARTS, Measured
from training.insight.studies.results import Arm, ArmResult


def test_arms_are_compared_within_their_rounds():
    measured = planted(rounds=(0.5, 1.0, 2.0))  # a machine that is busy with something else
    amp = measured.times("amp")
    assert (amp.mean, amp.low, amp.high) == pytest.approx((2, 2, 2))
    assert measured.speeds("amp") == pytest.approx([100, 200, 400])


def test_what_parts_multiply_to_leaves_out_what_mixed_precision_replaces():
    measured = planted()
    assert measured.product_of_parts("all") == pytest.approx(dict.fromkeys(range(3), 3.6036))
    assert measured.interplay("all").mean == pytest.approx(1)
    assert planted({"baseline": 100.0, "amp": 200.0, "all": 300.0}).product_of_parts("all") == {}


def test_differences_of_arms_that_are_the_same_count_for_nothing():
    again = {("baseline_again", seed): 1.06 for seed in range(3)}
    measured = planted(jitter=again)
    assert planted().tolerance == pytest.approx(0.02)
    assert measured.tolerance == pytest.approx(0.06)
    assert measured.is_more(measured.times("workers"))
    assert not measured.is_more(measured.times("channels_last"))


def test_on_a_cpu_arms_of_cudnn_are_the_same_as_others():
    speeds = dict.fromkeys(PARTS, 100.0) | {"amp": 104.0, "amp+cudnn": 104.0}
    same = planted(speeds, "cpu", jitter={("cudnn", 1): 0.93}).same_arms
    assert list(same) == [("cudnn", "baseline"), ("amp+cudnn", "amp")]
    assert same["cudnn", "baseline"].mean == pytest.approx(0.93 ** (1 / 3))
    assert same["amp+cudnn", "amp"].mean == pytest.approx(1)


def test_one_round_tells_nothing_apart():
    measured = planted(rounds=(1.0,))
    assert measured.num_rounds == 1
    assert not any(measured.is_more(measured.times(name)) for name in EVERY_ONE_PAYS)


def test_an_interrupted_run_tells_its_speed_and_not_its_warm_up():
    """Of four epochs, the third went on in another process."""
    epochs = [epoch(1, 12.0, 83.0), epoch(2, 10.0, 100.0), epoch(3, 60.0, 20.0), epoch(4, 10.0, 100.0)]
    epochs[2] = msgspec.structs.replace(epochs[2], warm_up=True)
    broken = ArmResult(Arm("baseline", (), ""), 0, epochs, 1.0, num_starts=2)
    whole = run("baseline", 1, 100.0, first_epoch_s=3.0)
    assert Measured([broken], "cpu").warm_up_s("baseline") is None
    measured = Measured([broken, whole], "cpu")
    assert (measured.epoch_s("baseline"), measured.warm_up_s("baseline")) == (10.0, 3.0)
