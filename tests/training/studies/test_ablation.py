from pathlib import Path

import msgspec
import pytest
import torch

from models.errors import BotanifyError, CheckpointError, DataError, RecipeError
from tests.training.small import RECIPE, draw, make_taxonomy, write_data
from tests.training.studies.planted import SEEDS, TOP1, ablation, result, run_at_once
from training.recipe import read_recipe, recipe_to_plain
from training.studies import ablation as study
from training.studies.ablation import Ablate, ablate, best_rate, equal_time_epochs, largest_batch
from training.studies.ablation_findings import effects, verdicts
from training.studies.ablation_report import as_study, plots
from training.studies.arms import Arm, StudyPaused
from training.studies.ladder import LADDER, arms, ladder, memory_arm, rate_arms
from training.studies.report import markdown, read_study, write_study
from training.studies.verdicts import Claim, Interval, judge, mean_interval, points_interval, ratio_interval
from training.train import parse

POINTS = Claim("drawn", "5 to 7 points", 5, 7, "points")
TIMES = Claim("drawn", "3 times", 2.7, 3.3, "times")


def knobs(arm):
    """Knob -> value of an arm, as train.py understands its flags."""
    plain = recipe_to_plain(parse(["directml_baseline", *arm.flags]).recipe)
    return {knob: value for section in plain.values() if isinstance(section, dict) for knob, value in section.items()}


def test_every_arm_is_its_parent_and_the_change_that_it_names():
    tried = {arm.name: knobs(arm) for arm in arms(LADDER, 3e-5, 1e-4)}
    changed = {
        step.name: {knob for knob, value in tried[step.name].items() if value != tried[step.parent][knob]}
        for step in LADDER
        if step.parent
    }
    assert changed == {
        "best_rate": {"backbone_lr", "head_lr"},
        "frozen_norms": {"norms"},
        "accumulated": {"accumulate"},
        "groups_of_4": {"batch_size", "accumulate", "norms", "ghost_size"},
        "batch_16": {"norms"},
        "amp": {"amp"},
        "two_rates_3x": {"head_lr"},
        "two_rates_10x": {"head_lr"},
        "cosine": {"decay"},
        "hardware": {"channels_last", "cudnn_benchmark"},
    }


def test_the_ladder_leads_from_the_baseline_to_the_reference_recipe():
    first, last = (knobs(arm) for arm in (arms(LADDER, 3e-5, 1e-4)[0], arms(LADDER, 3e-5, 3e-5)[-1]))
    recipes = {name: recipe_to_plain(read_recipe(name)) for name in map(Path, ("directml_baseline", "b4_5337"))}
    for name, found in zip(recipes, (first, last), strict=True):
        for section, knob in (
            *(("schedule", knob) for knob in ("batch_size", "accumulate", "backbone_lr", "head_lr", "decay")),
            *(("hardware", knob) for knob in ("amp", "channels_last", "cudnn_benchmark", "compile")),
        ):
            assert found[knob] == recipes[name][section][knob], (name, knob)


def test_on_a_cpu_the_steps_about_a_gpu_are_left_out_and_the_others_close_up():
    parents = {step.name: step.parent for step in ladder("cpu")}
    assert parents.keys() == {step.name for step in LADDER} - {"amp", "hardware"}
    assert (parents["two_rates_3x"], parents["two_rates_10x"], parents["cosine"]) == (
        "batch_16",
        "batch_16",
        "two_rates_3x",
    )


def test_the_sweep_and_the_search_for_memory_change_the_baseline_only():
    assert [knobs(arm)["head_lr"] for arm in rate_arms(LADDER, (1e-5, 1e-3))] == [1e-5, 1e-3]
    arm = memory_arm("fp16", 24, 8.0)
    assert {knob: knobs(arm)[knob] for knob in ("batch_size", "amp", "memory_gb")} == {
        "batch_size": 24,
        "amp": "fp16",
        "memory_gb": 8,
    }
    assert arm.flags[-4:-2] == ("--max-steps", "2")


@pytest.mark.parametrize(
    ("claim", "measured", "word"),
    [
        (POINTS, (6.0, 5.2, 6.8), "confirmed"),
        (POINTS, (6.0, 2.6, 9.4), "confirmed"),
        (POINTS, (6.0, 2.4, 9.6), "undecided"),  # less than half of what was claimed is possible
        (POINTS, (4.8, 4.4, 5.2), "undecided"),
        (POINTS, (3.0, 1.0, 4.9), "smaller"),
        (POINTS, (9.0, 7.1, 10.9), "larger"),
        (POINTS, (0.5, -1.0, 2.0), "refuted"),
        (POINTS, (-3.0, -4.0, -2.0), "refuted"),
        (POINTS, (3.0, -4.0, 10.0), "undecided"),
        (POINTS, (6.0, None, None), "undecided"),
        (TIMES, (3.0, 2.9, 3.1), "confirmed"),
        (TIMES, (1.5, 1.2, 1.9), "smaller"),
        (TIMES, (1.0, 0.8, 1.2), "refuted"),
        (TIMES, (5.0, 4.5, 5.6), "larger"),
    ],
)
def test_a_verdict_follows_from_the_interval(claim, measured, word):
    assert judge(claim, Interval(*measured, num_values=3)) == word


def test_intervals_are_students():
    points = mean_interval([5.0, 6.0, 7.0])  # t of 2 degrees of freedom: 4.302653; standard error 1/sqrt(3)
    assert (points.mean, points.low, points.high) == pytest.approx((6, 6 - 2.484138, 6 + 2.484138), abs=1e-5)
    times = ratio_interval([2.0, 4.0])
    assert times.mean == pytest.approx(8**0.5)
    assert times.low * times.high == pytest.approx(8)
    assert mean_interval([5.0]) == Interval(5.0, None, None, 1)


def test_few_pictures_give_no_certainty_however_alike_the_seeds():
    certain, few, many = (points_interval([0.0, 0.0], count) for count in (10**9, 3, 10_000))
    assert certain.high == pytest.approx(0, abs=1e-3)
    assert few.high == pytest.approx(100 * 1.959964 / 5)  # one picture in five changed, at half a picture a cell
    assert many.high < 0.03
    assert judge(POINTS, few) == "undecided"
    wide = points_interval([6.0, 6.0, 6.0], 1000)  # 60.5 pictures better, 0.5 worse
    assert wide.high - 6 == pytest.approx(196 * (61 - 60**2 / 1002) ** 0.5 / 1002, rel=1e-3)


def words(found):
    return {verdict.claim.name: verdict.word for verdict in verdicts(found)}


def test_planted_effects_give_the_right_verdicts():
    assert words(ablation()) == {
        "BatchNorm": "confirmed",
        "two learning rates": "confirmed",
        "cosine annealing": "refuted",
        "all together": "larger",
        "speed": "confirmed",
        "memory": "confirmed",
        "batch": "confirmed",
    }


def test_other_planted_effects_give_other_verdicts():
    top1 = TOP1 | {"groups_of_4": 74.5, "two_rates_3x": 81.5, "cosine": 83.0, "hardware": 75.0}
    found = words(ablation(top1=top1))
    assert (found["BatchNorm"], found["two learning rates"], found["cosine annealing"], found["all together"]) == (
        "smaller",
        "larger",
        "confirmed",
        "smaller",
    )


def test_seeds_that_disagree_decide_nothing():
    runs = [
        result(arm, seed, top1=TOP1[arm.name] + (seed - 1) * (8 if arm.name == "batch_16" else 0))
        for arm in arms(LADDER, 3e-5, 1e-4)
        for seed in SEEDS
    ]
    assert words(ablation(equal_epochs=runs))["BatchNorm"] == "undecided"


def test_a_single_seed_decides_nothing_but_memory_limits():
    found = words(ablation(seeds=(0,)))
    assert found.pop("batch") == "confirmed"
    assert set(found.values()) == {"undecided"}


def test_on_a_cpu_speed_memory_and_batch_are_not_measured():
    found = {verdict.claim.name: verdict for verdict in verdicts(ablation("cpu"))}
    assert [found[name].word for name in ("speed", "memory", "batch")] == ["not measured"] * 3
    assert found["speed"].reason.startswith("CPU")
    assert found["BatchNorm"].word == "confirmed"
    assert found["two learning rates"].reason == "two_rates_3x against batch_16, 3 seeds."


def test_an_arm_that_failed_is_named_where_its_claim_is_not_measured():
    found = {verdict.claim.name: verdict for verdict in verdicts(ablation(failing=("amp",)))}
    assert found["memory"].word == "not measured"
    assert "amp failed: error (diverged): lost" in found["memory"].reason
    assert found["BatchNorm"].word == "confirmed"


def test_seeds_are_compared_with_themselves():
    step = {effect.step.name: effect for effect in effects(ablation(noise=(-20.0, 0.0, 20.0)))}["batch_16"]
    assert (step.points.low, step.points.high) == pytest.approx((6, 6), abs=0.6)
    assert step.speed.mean == pytest.approx(1)
    assert step.memory.mean == pytest.approx(2.5)


def test_warming_up_does_not_count_for_the_speed():
    found = {effect.step.name: effect for effect in effects(ablation())}
    assert found["amp"].speed.mean == pytest.approx(3, rel=0.02)


def test_the_report_says_what_was_planted(tmp_path):
    found = ablation(failing=("frozen_norms",))
    write_study(tmp_path, as_study(found), plots(found))
    told = (tmp_path / "ablation.md").read_text()
    assert "BatchNorm, claimed 5 to 7 points: **confirmed**. +6.0 (+5.5 to +6.5). batch_16 against groups_of_4" in told
    assert "cosine annealing, claimed 1 to 2 points: **refuted**. +0.0" in told
    assert "With 8 GB, 8 pictures a step fit in FP32 (9 do not)" in told
    assert "frozen_norms failed with seed 1 at equal epochs: error (diverged): lost" in told
    assert "memory, claimed half the memory: **confirmed**. 2.00 × less (2.00 × to 2.00 ×)." in told
    assert "| batch_16 | 76.5 % (76.3 % to 76.6 %) |" in told
    assert "confirmed: the mean lies in the claimed range" in told
    kept = read_study(tmp_path / "ablation.json")
    assert len(kept.arms) == len(LADDER) * len(SEEDS)
    assert [verdict["word"] for verdict in kept.details["verdicts"]] == list(words(found).values())
    for name in ("epochs", "time", "steps"):
        assert b"<svg" in (tmp_path / f"ablation-{name}.svg").read_bytes()


def test_a_report_of_an_unfinished_study_says_so():
    assert "**Unfinished**" in markdown(as_study(ablation(unfinished="The time is over.")))


def test_the_best_rate_is_the_one_that_is_right_most_often():
    arm = Arm("rate", (), "")
    sweep = [
        (1e-5, result(arm, 9, top1=50)),
        (1e-4, result(arm, 9, top1=60)),
        (1e-3, result(arm, 9, top1=0, error="x")),
    ]
    assert best_rate(sweep) == 1e-4
    with pytest.raises(BotanifyError, match=r"every rate.*: x"):
        best_rate(sweep[2:])


def test_equal_time_gives_an_arm_the_epochs_that_fit():
    timed = [result(Arm("fast", (), ""), seed, top1=50, speed=300) for seed in SEEDS]  # 3.3 s an epoch after the first
    assert equal_time_epochs(timed, 40.0) == 12
    assert equal_time_epochs(timed, 1.0) == 1


@pytest.mark.parametrize("memory", [4, 5, 12, 13, 50, 127])
def test_both_ends_of_the_largest_batch_were_tried_and_lie_together(memory):
    tried = {}
    limit = largest_batch(lambda size: tried.setdefault(size, size <= memory))
    assert (tried[limit.fits], tried[limit.fails]) == (True, False)
    assert limit.fails - limit.fits <= 2


def test_a_card_without_end_or_beginning_is_told():
    assert largest_batch(lambda size: False).fits == 0
    with pytest.raises(RecipeError, match="lower --memory-gb"):
        largest_batch(lambda size: True)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A whole study, in which runs take no time and nothing is drawn."""
    monkeypatch.setattr(study, "run_arm", run_at_once)
    monkeypatch.setattr(study, "plots", lambda _: [])
    draw("gold", "ellipse", 0).save(tmp_path / "0.jpg")
    taxonomy = make_taxonomy(1)
    rows = [("0.jpg", taxonomy.output_keys[0], split) for split in ("train", "validation")]
    data = write_data(tmp_path / "data", tmp_path, rows, taxonomy)
    weights = tmp_path / "first.pt"
    weights.write_bytes(b"weights")
    return Ablate(
        data=data, weights=weights, out=tmp_path / "out", recipe=RECIPE, epochs=2, seeds=(0, 1), rates=(1e-4,)
    )


def test_the_study_runs_every_arm_with_every_seed_and_then_for_equal_time(command):
    found = ablate(msgspec.structs.replace(command, device="cpu", rates=(1e-5, 1e-4)))
    names = [step.name for step in ladder("cpu")]
    assert found.best_rate == 1e-4
    assert [(one.arm.name, one.seed) for one in found.equal_epochs] == [(name, s) for s in (0, 1) for name in names]
    assert {one.seed for one in found.sweep} == {2}
    assert found.budget_s == 8  # two epochs of four seconds
    assert {one.arm.name: len(one.epochs) for one in found.equal_time} == {
        step.name: 2 if step.name in names[:4] else 8 for step in ladder("cpu")
    }
    assert (command.out / "ablation.md").exists()


def test_on_a_gpu_the_study_also_finds_the_largest_batches(command, monkeypatch):
    monkeypatch.setattr(study, "choose_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(study, "trained_on", lambda *_: "Drawn GPU")
    found = ablate(msgspec.structs.replace(command, seeds=(0,), equal_time=False))
    full, mixed = found.largest_batches["off"], found.largest_batches["fp16"]
    assert (full.fits, full.fails, mixed.fits, mixed.fails) == (12, 14, 50, 52)
    assert words(found)["batch"] == "confirmed"


def test_a_study_that_is_out_of_time_reports_what_it_has_and_goes_on(command, monkeypatch):
    def run_until_late(recipe, arm, seed, *others, deadline, **limits):
        if deadline is not None and arm.name == "batch_16":
            raise StudyPaused("the time is over")
        return run_at_once(recipe, arm, seed, *others, **limits)

    monkeypatch.setattr(study, "run_arm", run_until_late)
    with pytest.raises(StudyPaused):
        ablate(msgspec.structs.replace(command, device="cpu", stop_after_s=60))
    kept = read_study(command.out / "ablation.json")
    assert [one.arm.name for one in kept.arms] == [step.name for step in LADDER[:5]]
    assert "**Unfinished**" in (command.out / "ablation.md").read_text()
    assert ablate(msgspec.structs.replace(command, device="cpu")).unfinished == ""


def test_equal_time_waits_for_runs_that_crashed(command, monkeypatch):
    crashes = ["accumulated"]

    def run_or_crash(recipe, arm, *others, **limits):
        found = run_at_once(recipe, arm, *others, **limits)
        return msgspec.structs.replace(found, error="KeyError: 'x'" if arm.name in crashes else "")

    monkeypatch.setattr(study, "run_arm", run_or_crash)
    with pytest.raises(StudyPaused, match="accumulated with seed 0 crashed"):
        ablate(msgspec.structs.replace(command, device="cpu"))
    kept = read_study(command.out / "ablation.json")
    assert len(kept.arms) == 2 * len(ladder("cpu"))  # the other arms were not held up
    assert kept.details["equal_time"] == []
    crashes.clear()
    assert ablate(msgspec.structs.replace(command, device="cpu")).unfinished == ""


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"seeds": ()}, RecipeError, "--seeds 0 1 2"),
        ({"seeds": (1, 1)}, RecipeError, "each once"),
        ({"rates": ()}, RecipeError, "--rates"),
        ({"weights": Path("nowhere.pt")}, CheckpointError, "train one on the herbarium first"),
        ({"data": Path("nowhere")}, DataError, "nowhere"),
        ({"recipe": Path("nowhere")}, RecipeError, "no such recipe"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_runs(changes, error, told, command):
    with pytest.raises(error, match=told):
        ablate(msgspec.structs.replace(command, **changes))
    assert not (command.out / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_ablation_runs_whole_at_tiny_size(data, finished_run, tmp_path):
    tiny = ("--architecture", "test_efficientnet", "--picture-px", "32", "--serve-px", "32", "--workers", "0")
    command = Ablate(
        data=data,
        weights=finished_run / "best.pt",
        out=tmp_path / "out",
        epochs=2,
        seeds=(0, 1),
        rates=(1e-4, 1e-3),
        device="cpu",
        flags=tiny,
    )
    found = ablate(command)
    everything = [*found.sweep, *found.equal_epochs, *found.equal_time]
    assert [one.error for one in everything if one.error] == []
    assert len(found.equal_epochs) == len(found.equal_time) == 2 * len(ladder("cpu"))
    assert all(0 <= one.top1 <= 1 and one.epochs[-1].num_pictures for one in everything)
    assert all(len(one.epochs) == 2 for one in found.equal_epochs)
    assert words(found)["speed"] == "not measured"
    assert "measured on" in (tmp_path / "out" / "ablation.md").read_text().lower()
    assert not list((tmp_path / "out").rglob("*.pt"))
    again = ablate(command)
    assert (again.equal_epochs, again.equal_time) == (found.equal_epochs, found.equal_time)  # nothing is run again
