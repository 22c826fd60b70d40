import pytest

from models.errors import RecipeError
from tests.training.insight.studies.planted_speedups import planted, run
from tests.training.small import RECIPE
from training.insight.studies import rounds
from training.insight.studies.arms import StudyPaused
from training.insight.studies.optimizations import Optimizations, arms, measure_optimizations, plots, tables
from training.insight.studies.plots import draw
from training.insight.studies.report import read_study
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.speedups import AGAIN, CUDA_ONLY, PARTS, Speedups
from training.train import parse


def test_tables_hold_speed_and_every_epoch():
    speed, epochs = tables(planted(memory=dict.fromkeys(PARTS, 4.0)))
    rows = {row[0]: row for row in speed.rows}
    assert rows["amp+cudnn"][1:6] == ["240.0 [238.8 to 241.0]", "4.2", "2.40 [2.40 to 2.40]", "2.40", "4.00"]
    assert [row[0] for row in epochs.rows] == list(PARTS)
    assert epochs.rows[0] == ["baseline", "12.0 [12.0 to 12.1]", "10.0 [10.0 to 10.1]", "10.0 [10.0 to 10.1]"]
    assert all(len(draw(plot)) > 1000 for plot in plots(planted()))


def test_an_arm_that_failed_has_no_row():
    failed = ArmResult(Arm("compile", (), ""), 0, [], "error (error): no compiler")
    measured = Speedups([run("baseline", 0, 100.0), failed], "cuda")
    assert [row[0] for row in tables(measured)[0].rows] == ["baseline"]


def test_every_arm_sets_all_six_switches():
    flags = {arm.name: set(arm.flags) for arm in arms("cuda", "bf16")}
    assert list(flags) == list(PARTS)
    plain = {"--amp", "off", "--no-persistent-workers", "--no-cudnn-benchmark", "--no-channels-last", "--no-compile"}
    plain |= {"--no-tf32"}
    assert flags["baseline"] == flags[AGAIN] == plain
    assert flags["cudnn"] == plain - {"--no-cudnn-benchmark"} | {"--cudnn-benchmark"}
    assert flags["all"] == {
        *("--amp", "bf16", "--persistent-workers", "--cudnn-benchmark", "--channels-last", "--compile", "--tf32"),
    }


def test_the_baseline_is_fp32_in_the_word_s_full_sense():
    recipe = parse(["b4_5337", *arms("cuda", "fp16")[0].flags]).recipe
    assert (recipe.hardware.amp, recipe.hardware.tf32) == ("off", False)


def test_a_cpu_has_no_arms_that_repeat_others():
    assert [arm.name for arm in arms("cpu", "bf16")] == [name for name in PARTS if name not in CUDA_ONLY]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"only": ("ampp",)}, "no such arm"),
        ({"only": ("tf32",)}, "no such arm on cpu"),
        ({"epochs": 1}, "first epoch is the warm-up"),
        ({"seeds": (1, 1)}, "each once"),
        ({"flags": ("--no-compile",)}, "the study itself sets this flag"),
        ({"flags": ("--tf32",)}, "the study itself sets this flag"),
        ({"flags": ("--epochs=9",)}, "the study itself sets this flag"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(changes, told, data, tmp_path):
    command = {"data": data, "out": tmp_path, "recipe": RECIPE, "device": "cpu"} | changes
    with pytest.raises(RecipeError, match=told):
        measure_optimizations(Optimizations(**command))
    assert not (tmp_path / "runs").exists()


def test_a_study_that_pauses_reports_what_it_has_and_goes_on(data, tmp_path, monkeypatch):
    def run_arm(recipe, arm, seed, *_, until, **limits):
        if until.is_over or (seed, arm.name) == stops_at[0]:
            raise StudyPaused("the time is over; start the same command again to go on.")
        return run(arm.name, seed, 100.0 if arm.name == "baseline" else 200.0)

    stops_at = [(2, "amp")]
    monkeypatch.setattr(rounds, "run_arm", run_arm)
    command = Optimizations(data=data, out=tmp_path, recipe=RECIPE, device="cpu", only=("amp",))
    with pytest.raises(StudyPaused):
        measure_optimizations(command)
    kept = read_study(tmp_path / "optimizations.json")
    assert len(kept.arms) in (4, 5)
    assert kept.findings[0].about == "unfinished"
    assert "The fastest arm is amp: 2.00 times" in (tmp_path / "optimizations.md").read_text()
    stops_at[:] = [None]
    whole = measure_optimizations(command)
    assert len(whole.arms) == 6
    assert "unfinished" not in {finding.about for finding in whole.findings}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiny_study_runs_whole_and_is_not_run_twice(data, tmp_path):
    flags, only = ("--norms", "leave"), ("amp", "channels_last")
    command = Optimizations(
        data=data, out=tmp_path, recipe=RECIPE, epochs=2, seeds=(0,), device="cpu", only=only, flags=flags
    )
    study = measure_optimizations(command)
    assert {result.arm.name for result in study.arms} == {"baseline", *only}
    assert not [result.error for result in study.arms if result.error]
    assert all([epoch.warm_up for epoch in result.epochs] == [True, False] for result in study.arms)
    assert all(result.epochs[1].pictures_per_s > 0 and result.num_starts == 1 for result in study.arms)
    assert [finding.about for finding in study.findings] == ["noise"]
    assert read_study(tmp_path / "optimizations.json") == study
    assert str(data) not in (tmp_path / "optimizations.json").read_text()
    assert measure_optimizations(command).arms == study.arms  # the seconds are those of the first time
