from pathlib import Path

import msgspec
import pytest

from models.errors import BotanifyError, CheckpointError, DataError, RecipeError
from tests.training.insight.studies.planted import result
from tests.training.insight.studies.planted_ablation import run_at_once
from tests.training.small import RECIPE, draw, make_taxonomy, write_data
from training.insight.studies import rounds
from training.insight.studies.ablation import Ablate, ablate, best_rate
from training.insight.studies.arms import StudyPaused
from training.insight.studies.ladder import ladder
from training.insight.studies.report import read_study
from training.insight.studies.results import Arm


def about(study, rule):
    """The conclusions of one rule."""
    return "\n".join(finding.text for finding in study.findings if finding.about == rule)


def test_the_best_rate_has_the_best_top1():
    arm = Arm("rate", (), "")
    sweep = [
        (1e-5, result(arm, 9, top1=50)),
        (1e-4, result(arm, 9, top1=60)),
        (1e-3, result(arm, 9, top1=0, error="x")),
    ]
    assert best_rate(sweep) == 1e-4
    with pytest.raises(BotanifyError, match=r"every learning rate.*: x"):
        best_rate(sweep[2:])


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A whole study with instant runs."""
    monkeypatch.setattr(rounds, "run_arm", run_at_once)
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
    assert "best rate of those tried is 0.0001" in about(found, "best rate")
    assert sorted((one.seed, one.arm.name) for one in found.arms) == sorted((s, name) for s in (0, 1) for name in names)
    assert [(one.arm.name, one.seed) for one in found.other_runs["rates"]] == [("rate_1e-05", 2), ("rate_0.0001", 2)]
    assert "trains for 8.0 s" in found.about  # two epochs of four seconds
    assert {one.arm.name: len(one.epochs) for one in found.other_runs["equal time"]} == {
        step.name: 2 if step.name in names[:4] else 8 for step in ladder("cpu")
    }
    assert (command.out / "ablation.md").exists()


def test_a_single_rate_is_taken_untried(command):
    found = ablate(msgspec.structs.replace(command, device="cpu"))
    assert found.other_runs["rates"] == []
    assert "0.0001, was set without a search" in about(found, "best rate")


def test_some_arms_may_be_trained_alone(command):
    only = ("groups_of_4", "batch_16")
    found = ablate(msgspec.structs.replace(command, device="cpu", only=only, equal_time=False))
    assert sorted((one.seed, one.arm.name) for one in found.arms) == [
        (seed, name) for seed in (0, 1) for name in sorted(only)
    ]
    assert about(found, "verdict").count("not measured") == 5
    assert found.other_runs["equal time"] == []


def test_a_study_that_is_out_of_time_reports_what_it_has_and_goes_on(command, monkeypatch):
    def run_until_late(recipe, arm, *others, **limits):
        if len(done) == 5:
            raise StudyPaused("the time is over")
        done.append(arm)
        return run_at_once(recipe, arm, *others, **limits)

    done, command = [], msgspec.structs.replace(command, device="cpu")
    monkeypatch.setattr(rounds, "run_arm", run_until_late)
    with pytest.raises(StudyPaused):
        ablate(command)
    kept = read_study(command.out / "ablation.json")
    assert [one.arm for one in kept.arms] == done
    assert "**Unfinished**" in (command.out / "ablation.md").read_text()
    monkeypatch.setattr(rounds, "run_arm", run_at_once)
    assert about(ablate(command), "unfinished") == ""


def test_an_arm_that_keeps_crashing_does_not_stop_the_study(command, monkeypatch):
    def run_or_crash(recipe, arm, *others, **limits):
        found = run_at_once(recipe, arm, *others, **limits)
        return msgspec.structs.replace(found, error="KeyError: 'x'" if arm.name == "accumulated" else "")

    monkeypatch.setattr(rounds, "run_arm", run_or_crash)
    found = ablate(msgspec.structs.replace(command, device="cpu"))
    assert len(found.other_runs["equal time"]) == 2 * (len(ladder("cpu")) - 1)
    assert "accumulated failed with seed 0 at equal epochs: KeyError: 'x'" in (command.out / "ablation.md").read_text()


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"seeds": ()}, RecipeError, "--seeds 0 1 2"),
        ({"seeds": (1, 1)}, RecipeError, "each once"),
        ({"rates": ()}, RecipeError, "--rates"),
        ({"epochs": 1}, RecipeError, "at least 2"),
        ({"only": ("batch16",)}, RecipeError, "no such arm"),
        ({"only": ("batch_16",)}, RecipeError, "add directml_baseline to --only"),
        ({"flags": ("--amp", "bf16")}, RecipeError, "the study itself sets this flag"),
        ({"flags": ("--no-tf32",)}, RecipeError, "the study itself sets this flag"),
        ({"weights": Path("nowhere.pt")}, CheckpointError, "train one on drawn plants first"),
        ({"data": Path("nowhere")}, DataError, "nowhere"),
        ({"recipe": Path("nowhere")}, RecipeError, "no such recipe"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(changes, error, told, command):
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
    everything = [*found.arms, *found.other_runs["rates"], *found.other_runs["equal time"]]
    assert [one.error for one in everything if one.error] == []
    assert len(found.arms) == len(found.other_runs["equal time"]) == 2 * len(ladder("cpu"))
    assert all(0 <= one.top1 <= 1 and one.epochs[-1].num_pictures for one in everything)
    assert all(len(one.epochs) == 2 for one in found.arms)
    assert "speed, claimed 3 times the speed: **not measured**" in about(found, "verdict")
    assert "measured on" in (tmp_path / "out" / "ablation.md").read_text().lower()
    assert not list((tmp_path / "out").rglob("*.pt"))
    again = ablate(command)
    assert (again.arms, again.other_runs) == (found.arms, found.other_runs)  # nothing is run again
