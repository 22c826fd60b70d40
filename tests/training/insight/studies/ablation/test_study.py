from pathlib import Path

import msgspec
import pytest

from models.errors import BotanifyError, CheckpointError, DataError, RecipeError
from tests.training.insight.studies.ablation.planted import run_at_once
from tests.training.insight.studies.planted import result
from tests.training.small import RECIPE, draw, make_taxonomy, write_data
from training.insight.studies.ablation import study
from training.insight.studies.ablation.findings import verdicts
from training.insight.studies.ablation.ladder import LADDER, ladder
from training.insight.studies.ablation.study import Ablate, ablate, best_rate
from training.insight.studies.arms import StudyPaused
from training.insight.studies.report import read_study
from training.insight.studies.results import Arm


def words(found):
    return {verdict.claim.name: verdict.word for verdict in verdicts(found)}


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


@pytest.fixture
def on_a_gpu(command, monkeypatch):
    """The same as on a GPU."""
    monkeypatch.setattr(Ablate, "on", property(lambda _: "cuda"))
    monkeypatch.setattr(study, "trained_on", lambda *_: "Drawn GPU")
    return command


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


def test_a_single_rate_is_taken_untried(command):
    found = ablate(msgspec.structs.replace(command, device="cpu"))
    assert (found.best_rate, found.sweep) == (1e-4, [])


def test_some_arms_may_be_trained_alone(command):
    only = ("groups_of_4", "batch_16")
    found = ablate(msgspec.structs.replace(command, device="cpu", only=only, equal_time=False))
    assert [(one.arm.name, one.seed) for one in found.equal_epochs] == [
        (name, seed) for seed in (0, 1) for name in only
    ]
    measured = {verdict.claim.name for verdict in verdicts(found) if verdict.measured is not None}
    assert measured == {"BatchNorm"}
    assert found.equal_time == []


def test_on_a_gpu_the_study_also_runs_the_claims_about_hardware_at_the_recipe_s_own_size(on_a_gpu):
    flags = ("--picture-px", "64", "--serve-px", "64")
    command = msgspec.structs.replace(on_a_gpu, equal_time=False, flags=flags)
    found = ablate(command)
    full, mixed = found.largest_batches["off"], found.largest_batches["fp16"]
    assert (full.fits, full.fails, mixed.fits, mixed.fails) == (12, 14, 50, 52)
    assert {one.epochs[-1].side_px for one in found.equal_epochs} == {64}
    assert {one.epochs[-1].side_px for one in found.hardware} == {32}  # of the recipe
    assert [one.arm.name for one in found.hardware] == ["directml_baseline", "batch_16", "amp", "hardware"] * 2
    told = words(found)
    assert told["batch"] == "confirmed"
    assert told["speed"] == "larger"  # eight times
    other = msgspec.structs.replace(command, out=command.out / "other", hardware_px=48)
    assert {one.epochs[-1].side_px for one in ablate(other).hardware} == {48}


def test_the_claims_about_hardware_may_be_left_out(on_a_gpu):
    found = ablate(msgspec.structs.replace(on_a_gpu, equal_time=False, hardware=False))
    assert (found.hardware, found.largest_batches) == ([], {})
    assert words(found)["memory"] == "not measured"


def test_a_batch_that_fails_for_another_reason_costs_its_own_claim_only(on_a_gpu, monkeypatch):
    def run(recipe, arm, *others, **limits):
        found = run_at_once(recipe, arm, *others, **limits)
        return msgspec.structs.replace(found, error="error (x): lost." if arm.name == "memory_fp16_8" else found.error)

    monkeypatch.setattr(study, "run_arm", run)
    found = ablate(msgspec.structs.replace(on_a_gpu, equal_time=False))
    reasons = {verdict.claim.name: verdict.reason for verdict in verdicts(found)}
    assert reasons["batch"] == "A step of 8 pictures fails, and not for lack of memory: error (x): lost."
    assert words(found)["speed"] == "larger"


def test_a_card_that_holds_any_batch_costs_its_own_claim_only(on_a_gpu, monkeypatch):
    def run(recipe, arm, seed, folder, common, **limits):
        if folder.name == "memory":
            return result(arm, seed)
        return run_at_once(recipe, arm, seed, folder, common, **limits)

    monkeypatch.setattr(study, "run_arm", run)
    found = ablate(msgspec.structs.replace(on_a_gpu, equal_time=False))
    assert "lower --memory-gb" in found.largest_batch_error
    assert words(found)["speed"] == "larger"


def test_a_study_that_is_out_of_time_reports_what_it_has_and_goes_on(command, monkeypatch):
    def run_until_late(recipe, arm, *others, **limits):
        if arm.name == "batch_16":
            raise StudyPaused("the time is over")
        return run_at_once(recipe, arm, *others, **limits)

    command = msgspec.structs.replace(command, device="cpu")
    monkeypatch.setattr(study, "run_arm", run_until_late)
    with pytest.raises(StudyPaused):
        ablate(command)
    kept = read_study(command.out / "ablation.json")
    assert [one.arm.name for one in kept.arms] == [step.name for step in LADDER[:5]]
    assert "**Unfinished**" in (command.out / "ablation.md").read_text()
    monkeypatch.setattr(study, "run_arm", run_at_once)
    assert ablate(command).unfinished == ""


def test_an_arm_that_keeps_crashing_holds_up_no_study(command, monkeypatch):
    def run_or_crash(recipe, arm, *others, **limits):
        found = run_at_once(recipe, arm, *others, **limits)
        return msgspec.structs.replace(found, error="KeyError: 'x'" if arm.name == "accumulated" else "")

    monkeypatch.setattr(study, "run_arm", run_or_crash)
    found = ablate(msgspec.structs.replace(command, device="cpu"))
    assert len(found.equal_time) == 2 * (len(ladder("cpu")) - 1)
    assert "accumulated failed with seed 0 at equal epochs: KeyError: 'x'" in (command.out / "ablation.md").read_text()


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"seeds": ()}, RecipeError, "--seeds 0 1 2"),
        ({"seeds": (1, 1)}, RecipeError, "each once"),
        ({"rates": ()}, RecipeError, "--rates"),
        ({"epochs": 1}, RecipeError, "at least 2"),
        ({"memory_gb": 0.0}, RecipeError, "--memory-gb 0"),
        ({"only": ("batch16",)}, RecipeError, "no such arm"),
        ({"only": ("batch_16",)}, RecipeError, "add directml_baseline to --only"),
        ({"flags": ("--amp", "bf16")}, RecipeError, "the study itself decides this flag"),
        ({"flags": ("--no-tf32",)}, RecipeError, "the study itself decides this flag"),
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
