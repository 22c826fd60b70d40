import re

import pytest

from models.errors import RecipeError
from tests.training.small import RECIPE
from training.studies.arms import Arm, ArmResult, EpochResult
from training.studies.optimizations import Optimizations, arms, measure_optimizations, plots, tables
from training.studies.optimizations_figures import PARTS, Measured
from training.studies.optimizations_findings import findings
from training.studies.plots import draw
from training.studies.report import read_study

PICTURES = 1000
ROUNDS = (0.995, 1.0, 1.004)  # what a round does to all speeds
EVERY_ONE_PAYS = {
    "baseline": 100.0,
    "amp": 200.0,
    "workers": 110.0,
    "cudnn": 120.0,
    "amp+cudnn": 240.0,
    "amp+cudnn+workers": 264.0,
    "channels_last": 105.0,
    "compile": 130.0,
    "all": 360.36,  # the product of all five
}


def planted(speeds=EVERY_ONE_PAYS, device="cuda", memory=None, first_epoch_s=None, jitter=None):
    """Three rounds of three epochs; the first epoch takes 2 s more than the others, or what is said."""
    results = []
    for seed, pace in enumerate(ROUNDS):
        for name, speed in speeds.items():
            moved = speed * pace * (jitter or {}).get((name, seed), 1.0)
            steady = PICTURES / moved
            first = steady + (first_epoch_s or {}).get(name, 2.0)
            peak = (memory or {}).get(name)
            epochs = [
                EpochResult(n, s, PICTURES / s, None, None, None, peak)
                for n, s in enumerate((first, steady, steady), 1)
            ]
            results.append(ArmResult(Arm(name, (), ""), seed, epochs, 3.0))
    return Measured(results, device)


def told(measured, about):
    return [finding.text for finding in findings(measured) if finding.about == about]


def test_what_multiplies_as_expected_is_no_surprise():
    measured = planted()
    assert told(measured, "fastest") == ["Fastest is all: 3.60 times the baseline."]
    for about in ("combination", "slower_alone", "ceiling", "warm_up", "failed"):
        assert told(measured, about) == []
    assert measured.noise == pytest.approx(0.02)


def test_mixed_precision_that_takes_more_memory_is_told_with_both_figures():
    more = {"baseline": 4.0, "amp": 5.0, "amp+cudnn": 5.0}
    (text,) = told(planted(memory=more), "amp_memory")
    assert "MORE memory, not less: 5.00 GB with mixed precision, 4.00 GB in FP32" in text
    assert "still holds 5.00 GB, so the workspace of untimed ones is not the cause" in text


def test_memory_that_timed_kernels_give_back_was_their_workspace():
    (text,) = told(planted(memory={"baseline": 4.0, "amp": 5.0, "amp+cudnn": 2.5}), "amp_memory")
    assert "it holds 2.50 GB, so the surplus is workspace" in text


@pytest.mark.parametrize(("mixed", "word"), [(2.0, "less"), (3.97, "no less"), (4.05, "no less")])
def test_mixed_precision_that_saves_memory_is_no_surprise(mixed, word):
    (text,) = told(planted(memory={"baseline": 4.0, "amp": mixed}), "amp_memory")
    assert text.startswith(f"Mixed precision holds {word} memory")


def test_a_combination_slower_than_its_parts_names_the_part_that_gains_nothing_any_more():
    slow = EVERY_ONE_PAYS | {"amp+cudnn": 202.0, "amp+cudnn+workers": 221.0}
    pair, triple = told(planted(slow), "combination")
    assert pair == (
        "amp+cudnn is slower than its parts: 2.02 times, its parts multiply to 2.40 times. cudnn gives 1.20 times "
        "alone and 1.01 on top of amp: what it speeds up is no longer what a step waits for."
    )
    assert triple.startswith(
        "amp+cudnn+workers is slower than its parts: 2.21 times, its parts multiply to 2.64 times."
    )


def test_a_combination_is_judged_beyond_the_noise_only():
    assert told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 237.0}), "combination") == []


def test_a_combination_whose_parts_were_not_run_is_not_judged():
    assert told(planted({"baseline": 100.0, "amp": 200.0, "all": 100.0}), "combination") == []


def test_cudnn_benchmark_alone_that_costs_time_is_told():
    (text,) = told(planted(EVERY_ONE_PAYS | {"cudnn": 80.0}), "cudnn_alone")
    assert text.startswith("cudnn.benchmark alone costs time even after the warm-up: 0.80 times the baseline's speed.")


def test_cudnn_benchmark_alone_that_warms_up_for_hours_is_told_when_it_repays():
    (text,) = told(planted(first_epoch_s={"cudnn": 3602.0}), "cudnn_alone")
    assert "takes 3,600.0 s longer; saving 1.7 s an epoch repays it in" in text
    epochs = int(re.search(r"in ([\d,]+) epochs", text)[1])
    assert epochs == pytest.approx(3600 / (10 - 1000 / 120), abs=1)


def test_a_warm_up_that_saves_nothing_is_never_repaid():
    slow = EVERY_ONE_PAYS | {"compile": 100.0}
    (text,) = told(planted(slow, first_epoch_s={"compile": 62.0}), "warm_up")
    assert text == "compile: Its warm-up takes 60.0 s longer and is never repaid, as later epochs save nothing."


def test_on_a_cpu_arms_of_cudnn_measure_the_noise():
    speeds = dict.fromkeys(PARTS, 100.0) | {"amp": 104.0, "amp+cudnn": 104.0}
    measured = planted(speeds, "cpu", jitter={("cudnn", 1): 0.93})
    assert measured.noise == pytest.approx(0.07)
    assert "should give 1.00 times the speed, and gave 1.00 (0.93 to 1.00)" in told(measured, "cudnn_alone")[0]
    assert told(measured, "fastest") == ["Nothing is faster than the baseline beyond the noise."]
    assert told(measured, "amp_memory") == ["Memory is not measured: CPU."]


def test_bf16_that_slows_a_cpu_down_is_told():
    (text,) = told(planted({"baseline": 100.0, "amp": 55.0, "cudnn": 100.0}, "cpu"), "slower_alone")
    assert text.startswith("amp alone is slower than the baseline: 0.55 times its speed.")


def test_arms_that_stop_at_one_speed_point_to_something_else():
    (text,) = told(planted(EVERY_ONE_PAYS | {"amp+cudnn": 250.0, "amp+cudnn+workers": 251.0, "all": 252.0}), "ceiling")
    assert "(amp+cudnn, amp+cudnn+workers, all) stop at the same 252.0 pictures/s" in text


def test_the_fastest_is_named_where_all_together_is_slower():
    (text,) = told(planted(EVERY_ONE_PAYS | {"all": 150.0}), "fastest")
    assert text.startswith("Fastest is amp+cudnn+workers: 2.64 times")
    assert "faster than all together (1.50 times)" in text


def test_an_arm_that_failed_gives_its_reason_and_no_figures():
    measured = planted()
    failed = ArmResult(Arm("compile", (), ""), 0, [], None, "error (error): no compiler")
    measured = Measured([*(r for n in measured.names if n != "compile" for r in measured.of(n)), failed], "cuda")
    assert told(measured, "failed") == ["compile gave no figures: error (error): no compiler"]
    assert "compile" not in [row[0] for row in tables(measured)[0].rows]


def test_an_epoch_that_was_interrupted_counts_at_its_pace():
    epochs = [EpochResult(1, 10.0, 100.0, None, None, None, None), EpochResult(2, 3.0, 100.0, None, None, None, None)]
    measured = Measured([ArmResult(Arm("baseline", (), ""), 0, epochs, 1.0)], "cpu")
    assert measured.epoch_s(measured.of("baseline")[0]) == [10.0, 10.0]


def test_tables_hold_speed_and_every_epoch():
    speed, epochs = tables(planted(memory=dict.fromkeys(PARTS, 4.0)))
    rows = {row[0]: row for row in speed.rows}
    assert rows["amp+cudnn"][1:6] == ["240.0 [238.8 to 241.0]", "4.2", "2.40 [2.40 to 2.40]", "2.40", "4.00"]
    assert [row[0] for row in epochs.rows] == list(PARTS)
    assert epochs.rows[0] == ["baseline", "12.0 [12.0 to 12.1]", "10.0 [10.0 to 10.1]", "10.0 [10.0 to 10.1]"]
    assert all(len(draw(plot)) > 1000 for plot in plots(planted()))


def test_every_arm_sets_all_five_switches():
    flags = {arm.name: set(arm.flags) for arm in arms("bf16")}
    assert list(flags) == list(PARTS)
    plain = {"--amp", "off", "--no-persistent-workers", "--no-cudnn-benchmark", "--no-channels-last", "--no-compile"}
    assert flags["baseline"] == plain
    assert flags["cudnn"] == plain - {"--no-cudnn-benchmark"} | {"--cudnn-benchmark"}
    assert flags["all"] == {
        "--amp",
        "bf16",
        "--persistent-workers",
        "--cudnn-benchmark",
        "--channels-last",
        "--compile",
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"only": ("ampp",)}, "no such arm"),
        ({"epochs": 1}, "first epoch is warm-up"),
        ({"seeds": (1, 1)}, "each once"),
        ({"flags": ("--no-compile",)}, "the study itself decides this flag"),
        ({"flags": ("--epochs=9",)}, "the study itself decides this flag"),
    ],
)
def test_a_study_without_sense_is_refused_before_anything_runs(changes, told, data, tmp_path):
    command = {"data": data, "out": tmp_path, "recipe": RECIPE, "device": "cpu"} | changes
    with pytest.raises(RecipeError, match=told):
        measure_optimizations(Optimizations(**command))
    assert not (tmp_path / "runs").exists()


def test_no_arm_always_follows_the_same_one(data, tmp_path, monkeypatch):
    def trained(recipe, arm, seed, *_args, **_limits):
        return ArmResult(arm, seed, [EpochResult(n, 1.0, 30.0, None, None, None, None) for n in (1, 2)], 0.1)

    monkeypatch.setattr("training.studies.rounds.run_arm", trained)
    study = measure_optimizations(
        Optimizations(data=data, out=tmp_path, recipe=RECIPE, seeds=(0, 7), device="cpu", only=("amp", "cudnn"))
    )
    assert [(result.arm.name, result.seed) for result in study.arms] == [
        *(("baseline", 0), ("amp", 0), ("cudnn", 0)),
        *(("amp", 7), ("cudnn", 7), ("baseline", 7)),
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiny_study_runs_whole_and_is_not_run_twice(data, tmp_path):
    flags, only = ("--norms", "leave"), ("amp", "cudnn")
    command = Optimizations(
        data=data, out=tmp_path, recipe=RECIPE, epochs=2, seeds=(0,), device="cpu", only=only, flags=flags
    )
    study = measure_optimizations(command)
    assert [result.arm.name for result in study.arms] == ["baseline", *only]
    assert not [result.error for result in study.arms if result.error]
    assert all(len(result.epochs) == 2 and result.epochs[0].pictures_per_s > 0 for result in study.arms)
    assert {"noise", "cudnn_alone", "amp_memory"} <= {finding.about for finding in study.findings}
    assert read_study(tmp_path / "optimizations.json") == study
    assert str(data) not in (tmp_path / "optimizations.json").read_text()
    assert measure_optimizations(command).arms == study.arms  # the seconds are those of the first time
