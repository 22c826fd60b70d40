"""What is said of planted speeds, and what must not be said of noise."""

import random
import re

import pytest

from tests.training.insight.studies.optimizations.planted import EVERY_ONE_PAYS, planted, run
from tests.training.insight.studies.planted import epoch
from training.insight.studies.optimizations.figures import PARTS, Measured
from training.insight.studies.optimizations.findings import findings
from training.insight.studies.results import Arm, ArmResult


def told(measured, about):
    return [finding.text for finding in findings(measured) if finding.about == about]


def noisy_studies(count, noise, speeds=EVERY_ONE_PAYS):
    """Studies whose every process is faster or slower by chance; `noise` is the deviation as a share."""
    draws = random.Random(5)
    for _ in range(count):
        yield planted(speeds, jitter={(name, seed): draws.gauss(1, noise) for name in speeds for seed in range(3)})


@pytest.mark.parametrize("noise", [0.01, 0.02])
def test_speeds_that_multiply_are_seldom_called_a_surprise_for_their_noise(noise):
    """Three combinations, each with an interval that one study in twenty misses."""
    surprised = sum(bool(told(measured, "combination")) for measured in noisy_studies(60, noise))
    assert surprised <= 6


def test_a_large_surprise_is_found_in_spite_of_the_noise():
    slow = EVERY_ONE_PAYS | {"amp+cudnn": 170.0, "amp+cudnn+workers": 240.0}
    found = [told(measured, "combination") for measured in noisy_studies(60, 0.01, slow)]
    assert sum(any(text.startswith("amp+cudnn is slower") for text in texts) for texts in found) > 55


def test_arms_that_are_all_the_same_have_no_fastest():
    same = noisy_studies(60, 0.01, dict.fromkeys(EVERY_ONE_PAYS, 100.0))
    none = sum(
        told(measured, "fastest") == ["No arm is faster than the baseline by more than chance."] for measured in same
    )
    assert none >= 54


def test_one_round_gives_figures_and_no_verdicts():
    failed = ArmResult(Arm("compile", (), ""), 0, [], None, "error (error): no compiler")
    speeds = EVERY_ONE_PAYS | {"cudnn": 50.0, "amp+cudnn": 50.0}
    measured = Measured([run(name, 0, speed) for name, speed in speeds.items() if name != "compile"] + [failed], "cuda")
    assert [finding.about for finding in findings(measured)] == ["noise", "failed"]
    assert "Nothing is told apart" in told(measured, "noise")[0]


def test_a_study_without_results_says_nothing():
    assert [finding.about for finding in findings(Measured([], "cuda"))] == ["noise"]


def test_what_multiplies_as_expected_is_no_surprise():
    measured = planted()
    assert told(measured, "fastest") == ["Fastest is all: 3.60 times (3.60 to 3.60) the baseline's speed."]
    for about in ("combination", "slower_alone", "ceiling", "warm_up", "failed", "untimed"):
        assert told(measured, about) == []
    (noise,) = told(measured, "noise")
    assert "over 3 rounds lies more than 2.0 % from 1" in noise
    assert "baseline_again, which is the same as baseline here, ran 1.00 times (1.00 to 1.00) as fast." in noise


def test_mixed_precision_that_takes_more_memory_is_told_with_both_figures():
    more = {"baseline": 4.0, "amp": 5.0, "amp+cudnn": 5.0}
    (text,) = told(planted(memory=more), "amp_memory")
    assert "MORE memory, not less: 5.00 GB with mixed precision, 4.00 GB in FP32" in text
    assert "still holds 5.00 GB, so the workspace of untimed ones is not the cause" in text


def test_memory_that_timed_kernels_give_back_was_their_workspace():
    (text,) = told(planted(memory={"baseline": 4.0, "amp": 5.0, "amp+cudnn": 2.5}), "amp_memory")
    assert "it holds 2.50 GB, so the surplus is workspace" in text


@pytest.mark.parametrize(("mixed", "word"), [(2.0, "holds less"), (3.97, "holds as much"), (4.05, "holds as much")])
def test_mixed_precision_that_saves_memory_is_no_surprise(mixed, word):
    (text,) = told(planted(memory={"baseline": 4.0, "amp": mixed}), "amp_memory")
    assert text.startswith(f"Mixed precision {word}")


def test_a_combination_slower_than_its_parts_names_the_part_that_gains_nothing_any_more():
    slow = EVERY_ONE_PAYS | {"amp+cudnn": 202.0, "amp+cudnn+workers": 222.2}
    pair, triple = told(planted(slow), "combination")
    assert pair == (
        "amp+cudnn is slower than its parts: 2.02 times, 0.84 times (0.84 to 0.84) what its parts multiply to. cudnn "
        "gives 1.20 times (1.20 to 1.20) the speed alone and 1.01 times (1.01 to 1.01) on top of amp: what it speeds "
        "up is no longer what a step waits for."
    )
    assert triple.startswith("amp+cudnn+workers is slower than its parts: 2.22 times, 0.84 times")
    assert "Amdahl" in triple  # workers still give what they give alone


def test_a_combination_is_judged_beyond_the_tolerance_only():
    assert told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 237.0}), "combination") == []


def test_a_combination_faster_than_its_parts_is_told():
    (text,) = told(planted(EVERY_ONE_PAYS | {"all": 500.0}), "combination")
    assert text.startswith("all is faster than its parts: 5.00 times, 1.39 times")


def test_a_combination_whose_parts_were_not_run_is_not_judged():
    assert told(planted({"baseline": 100.0, "amp": 200.0, "all": 100.0}), "combination") == []


def test_cudnn_benchmark_alone_that_costs_time_is_told():
    (text,) = told(planted(EVERY_ONE_PAYS | {"cudnn": 80.0}), "cudnn_alone")
    assert text.startswith("cudnn.benchmark alone costs time even after the warm-up: 0.80 times (0.80 to 0.80)")
    assert "warm-up cannot be told from" in text


def test_cudnn_benchmark_alone_that_warms_up_for_hours_is_told_when_it_repays():
    (text,) = told(planted(first_epoch_s={"cudnn": 3602.0}), "cudnn_alone")
    assert "takes 3,600.0 s longer; saving 1.7 s an epoch repays it in" in text
    epochs = int(re.search(r"in ([\d,]+) epochs", text)[1])
    assert epochs == pytest.approx(3600 / (10 - 1000 / 120), abs=1)


def test_a_warm_up_that_saves_nothing_is_never_repaid():
    slow = EVERY_ONE_PAYS | {"compile": 100.0}
    (text,) = told(planted(slow, first_epoch_s={"compile": 62.0}), "warm_up")
    assert text == "compile: Its warm-up takes 60.0 s longer and is never repaid, as far as can be told."


def test_on_a_cpu_arms_of_cudnn_show_the_noise():
    speeds = dict.fromkeys(PARTS, 100.0) | {"amp": 104.0, "amp+cudnn": 104.0}
    measured = planted(speeds, "cpu", jitter={("cudnn", 1): 0.93})
    assert "should give 1.00 times the speed, and gave 0.98 times (0.88 to 1.08)" in told(measured, "cudnn_alone")[0]
    assert "cudnn, which is the same as baseline here, ran 0.98 times" in told(measured, "noise")[0]
    assert told(measured, "amp_memory") == ["Memory is not measured: CPU."]


def test_bf16_that_slows_a_cpu_down_is_told():
    (text,) = told(planted({"baseline": 100.0, "amp": 55.0, "cudnn": 100.0}, "cpu"), "slower_alone")
    assert text.startswith("amp alone is slower than the baseline: 0.55 times (0.55 to 0.55) its speed.")


def test_arms_that_stop_at_one_speed_point_to_something_else():
    (text,) = told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 250.0, "amp+cudnn+workers": 251.0, "all": 252.0}), "ceiling")
    assert "(amp+cudnn, amp+cudnn+workers, all) stop at the same speed, within 5 %" in text


def test_arms_whose_noise_hides_their_difference_do_not_stop_at_one_speed():
    speeds = EVERY_ONE_PAYS | {"amp+cudnn": 250.0, "amp+cudnn+workers": 251.0, "all": 252.0}
    noise = {("amp+cudnn", 0): 0.9, ("amp+cudnn", 1): 1.1, ("all", 2): 1.1}
    assert told(planted(speeds, jitter=noise), "ceiling") == []


def test_the_fastest_is_named_where_all_together_is_slower():
    (text,) = told(planted(EVERY_ONE_PAYS | {"all": 150.0}), "fastest")
    assert text.startswith("Fastest is amp+cudnn+workers: 2.64 times")
    assert "All together is slower, 1.50 times (1.50 to 1.50): leave the others out" in text


def test_an_arm_that_cannot_be_told_from_the_fastest_is_named_with_it():
    (text,) = told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 357.0}), "fastest")
    assert text.endswith("Not told apart from it: amp+cudnn.")


def test_an_arm_that_failed_gives_its_reason():
    failed = ArmResult(Arm("compile", (), ""), 0, [], None, "error (error): no compiler")
    others = [result for name in planted().names if name != "compile" for result in planted().of(name)]
    assert told(Measured([*others, failed], "cuda"), "failed") == [
        "compile gave no figures: error (error): no compiler"
    ]


def test_an_arm_that_was_interrupted_in_every_epoch_says_so():
    cut = ArmResult(Arm("amp", (), ""), 2, [epoch(1, 9.0, 0.0)], 1.0, num_starts=3)
    others = [result for name in planted().names for result in planted().of(name) if (name, result.seed) != ("amp", 2)]
    (text,) = told(Measured([*others, cut], "cuda"), "untimed")
    assert text.startswith("amp has no speed in the round of seed 2")
    assert told(Measured([*others, cut], "cuda"), "fastest")
