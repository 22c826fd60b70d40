"""The conclusions from planted speeds, and that noise gives none."""

import random
import re

import pytest

from tests.training.insight.studies.planted import epoch
from tests.training.insight.studies.planted_speedups import EVERY_ONE_PAYS, planted, run
from training.insight.studies.optimizations import findings
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.speedups import Speedups


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
    assert sum(any(text.startswith("amp+cudnn gives less") for text in texts) for texts in found) > 55


def test_arms_that_are_all_the_same_have_no_fastest():
    same = noisy_studies(60, 0.01, dict.fromkeys(EVERY_ONE_PAYS, 100.0))
    none = sum(told(measured, "fastest") == ["No arm is significantly faster than the baseline."] for measured in same)
    assert none >= 54


def test_one_round_gives_figures_and_no_verdicts():
    failed = ArmResult(Arm("compile", (), ""), 0, [], "error (error): no compiler")
    speeds = EVERY_ONE_PAYS | {"cudnn": 50.0, "amp+cudnn": 50.0}
    measured = Speedups([run(name, 0, speed) for name, speed in speeds.items() if name != "compile"] + [failed], "cuda")
    assert [finding.about for finding in findings(measured)] == ["noise", "failed"]
    assert "One round shows no differences" in told(measured, "noise")[0]


def test_a_study_without_results_says_nothing():
    assert [finding.about for finding in findings(Speedups([], "cuda"))] == ["noise"]


def test_what_multiplies_as_expected_is_no_surprise():
    measured = planted()
    assert told(measured, "fastest") == ["The fastest arm is all: 3.60 times (3.60 to 3.60) the baseline's speed."]
    for about in ("combination", "slower", "warm_up", "failed", "untimed"):
        assert told(measured, about) == []
    (noise,) = told(measured, "noise")
    assert "over 3 rounds lies more than 2.0 % from 1" in noise
    assert "The baseline, run a second time, had 1.00 times (1.00 to 1.00) its own speed." in noise


def test_mixed_precision_that_takes_more_memory_is_told_with_both_figures():
    more = {"baseline": 4.0, "amp": 5.0, "amp+cudnn": 5.0}
    (text,) = told(planted(memory=more), "memory")
    assert text == "GPU memory with mixed precision is more: 5.00 GB against 4.00 GB in FP32."


@pytest.mark.parametrize(
    ("mixed", "word"), [(2.0, "less"), (3.97, "not significantly different"), (4.05, "not significantly different")]
)
def test_mixed_precision_that_saves_memory_is_no_surprise(mixed, word):
    (text,) = told(planted(memory={"baseline": 4.0, "amp": mixed}), "memory")
    assert text.startswith(f"GPU memory with mixed precision is {word}: ")


def test_a_combination_slower_than_its_parts_names_the_part_that_gains_nothing_any_more():
    slow = EVERY_ONE_PAYS | {"amp+cudnn": 202.0, "amp+cudnn+workers": 222.2}
    pair, triple = told(planted(slow), "combination")
    assert pair == (
        "amp+cudnn gives less than the product of its parts: 2.02 times the baseline's speed, 0.84 times (0.84 to "
        "0.84) the product."
    )
    assert triple.startswith("amp+cudnn+workers gives less than the product of its parts: 2.22 times")


def test_a_combination_is_judged_beyond_the_tolerance_only():
    assert told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 237.0}), "combination") == []


def test_a_combination_faster_than_its_parts_is_told():
    (text,) = told(planted(EVERY_ONE_PAYS | {"all": 500.0}), "combination")
    assert text.startswith("all gives more than the product of its parts: 5.00 times the baseline's speed, 1.39 times")


def test_a_combination_whose_parts_were_not_run_is_not_judged():
    assert told(planted({"baseline": 100.0, "amp": 200.0, "all": 100.0}), "combination") == []


def test_cudnn_benchmark_alone_that_warms_up_for_hours_is_told_when_it_repays():
    (text,) = told(planted(first_epoch_s={"cudnn": 3602.0}), "warm_up")
    assert "takes 3,600.0 s longer than the baseline's; at 1.7 s per epoch it pays off in" in text
    epochs = int(re.search(r"in ([\d,]+) epochs", text)[1])
    assert epochs == pytest.approx(3600 / (10 - 1000 / 120), abs=1)


def test_a_warm_up_that_saves_nothing_is_never_repaid():
    slow = EVERY_ONE_PAYS | {"compile": 100.0}
    (text,) = told(planted(slow, first_epoch_s={"compile": 62.0}), "warm_up")
    assert text == "The warm-up of compile takes 60.0 s longer than the baseline's and does not pay off."


def test_bf16_that_slows_a_cpu_down_is_told():
    (text,) = told(planted({"baseline": 100.0, "amp": 55.0, "cudnn": 100.0}, "cpu"), "slower")
    assert text.startswith("amp is slower than the baseline: 0.55 times (0.55 to 0.55) its speed.")


def test_the_fastest_is_named_where_all_together_is_slower():
    (text,) = told(planted(EVERY_ONE_PAYS | {"all": 150.0}), "fastest")
    assert text.startswith("The fastest arm is amp+cudnn+workers: 2.64 times")
    assert "all" not in text.partition("Not significantly")[2]


def test_an_arm_that_cannot_be_told_from_the_fastest_is_named_with_it():
    (text,) = told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 357.0}), "fastest")
    assert text.endswith("Not significantly slower: amp+cudnn.")


def test_an_arm_that_failed_gives_its_reason():
    failed = ArmResult(Arm("compile", (), ""), 0, [], "error (error): no compiler")
    others = [result for name in planted().names if name != "compile" for result in planted().of(name)]
    assert told(Speedups([*others, failed], "cuda"), "failed") == ["compile failed: error (error): no compiler"]


def test_an_arm_that_was_interrupted_in_every_epoch_says_so():
    cut = ArmResult(Arm("amp", (), ""), 2, [epoch(1, 9.0, 0.0)], num_starts=3)
    others = [result for name in planted().names for result in planted().of(name) if (name, result.seed) != ("amp", 2)]
    (text,) = told(Speedups([*others, cut], "cuda"), "untimed")
    assert text.startswith("amp has no speed with seed 2")
    assert told(Speedups([*others, cut], "cuda"), "fastest")
