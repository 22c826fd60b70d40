import msgspec
import pytest

from models.errors import RecipeError
from tests.training.insight.studies.planted import epoch
from tests.training.insight.studies.planted_grid import GRID, planted
from tests.training.small import RECIPE
from training.insight.studies import rounds
from training.insight.studies.arms import StudyPaused
from training.insight.studies.batch_sizes import BatchSizes, equal_time_plan, measure_batch_sizes, plots, tables
from training.insight.studies.plots import draw
from training.insight.studies.report import read_study
from training.insight.studies.results import ArmResult


def test_equal_time_lays_out_the_epochs_that_fit():
    needed = {name: epochs for name, (_, epochs) in equal_time_plan(planted(lambda cell: 70.0)).items()}
    assert set(needed.values()) == {12}  # 40 s at 3.45 s or 3.39 s an epoch
    assert not any(name.startswith("b16") for name in needed)  # theirs are the runs of equal epochs


def test_equal_time_is_the_same_time_with_slower_augmentation():
    needed = {name: epochs for name, (_, epochs) in equal_time_plan(planted(lambda cell: 70.0, heavy=0.5)).items()}
    assert needed["b16-heavy-unscaled"] == 2  # 40 s at 20 s an epoch
    assert needed["b64-heavy-unscaled"] == 6
    assert "b16-light-unscaled" not in needed


def test_a_failed_batch_size_has_an_empty_row():
    found = planted(lambda cell: 70.0, failing={"b256-heavy-scaled"})
    row = next(row for row in tables(found)[1].rows if row[:2] == ["256", "scaled"])
    assert set(row[2:]) == {"–"}


def test_tables_and_plots_show_every_cell():
    found = planted(lambda cell: 70 + cell.size / 100)
    light, heavy = tables(found)
    assert [row[:2] for row in light.rows] == [[str(n), rate] for n in GRID.sizes for rate in ("unscaled", "scaled")]
    assert light.rows[2][2:6] == [
        "290.0 [290.0 to 290.0]",
        "3.4 [3.4 to 3.4]",
        "7.40 [7.40 to 7.40]",
        "70.7 [70.6 to 70.9]",
    ]
    assert len(heavy.rows) == 6
    assert [plot.name for plot in plots(found)] == ["speed", "epochs", "time"]
    assert all(len(draw(plot)) > 1000 for plot in plots(found))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sizes": (8,)}, "at least two different ones"),
        ({"sizes": (8, 8, 16)}, "each once"),
        ({"sizes": (0, 8)}, "from 1 on"),
        ({"flags": ("--mixup", "0")}, "the study itself sets this flag"),
    ],
)
def test_wrong_sizes_are_refused_before_anything_runs(changes, told, data, tmp_path):
    command = {"data": data, "out": tmp_path, "recipe": RECIPE, "device": "cpu"} | changes
    with pytest.raises(RecipeError, match=told):
        measure_batch_sizes(BatchSizes(**command))
    assert not (tmp_path / "runs").exists()


def trained(asked, recipe, arm, seed, folder, common, *, until, max_seconds=None):
    """Replaces run_arm: batch size 8 is twice as fast as 4."""
    if until.is_over:
        raise StudyPaused("the time is over")
    epochs, pace = int(common[common.index("--epochs") + 1]), 1.0 if arm.name.startswith("b4") else 0.5
    asked.append((folder.name, arm.name, seed, epochs, max_seconds))
    results = [epoch(n, pace, 30 / pace, 0.5 + seed / 10, judged=3) for n in range(1, epochs + 1)]
    return ArmResult(arm, seed, results)


def test_a_study_runs_equal_epochs_then_equal_time(data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(rounds, "run_arm", lambda *arguments, **limits: trained(asked, *arguments, **limits))
    command = BatchSizes(
        data=data,
        out=tmp_path,
        recipe=RECIPE,
        epochs=3,
        seeds=(0, 1),
        sizes=(8, 4),
        device="cpu",
        flags=("--norms", "leave"),
    )
    study = measure_batch_sizes(command)
    names = [
        *("b4-light-unscaled", "b4-heavy-unscaled"),
        *("b8-light-unscaled", "b8-light-scaled", "b8-heavy-unscaled", "b8-heavy-scaled"),
    ]
    assert asked[0] == ("equal-epochs", names[0], 0, 3, None)
    assert sorted(asked[:6]) == sorted(("equal-epochs", name, 0, 3, None) for name in names)
    assert sorted(asked[6:12]) == sorted(("equal-epochs", name, 1, 3, None) for name in names)
    assert sorted(asked[12:]) == sorted(("equal-time", name, seed, 6, 3.0) for name in names[2:] for seed in (0, 1))
    timed = [(each.arm.name, each.seed) for each in study.other_runs["equal time"]]
    assert sorted(timed) == sorted((name, seed) for name in names for seed in (0, 1))
    assert msgspec.json.encode(read_study(tmp_path / "batch_sizes.json")) == msgspec.json.encode(study)
    assert {file.suffix for file in tmp_path.glob("batch_sizes*")} == {".json", ".md", ".svg"}


def test_a_study_that_pauses_at_equal_time_reports_the_equal_epochs(data, tmp_path, monkeypatch):
    def until_late(recipe, arm, seed, folder, *arguments, **limits):
        if folder.name == "equal-time":
            raise StudyPaused("the time is over")
        return trained([], recipe, arm, seed, folder, *arguments, **limits)

    monkeypatch.setattr(rounds, "run_arm", until_late)
    with pytest.raises(StudyPaused):
        measure_batch_sizes(BatchSizes(data=data, out=tmp_path, recipe=RECIPE, epochs=3, sizes=(4, 8), device="cpu"))
    kept = read_study(tmp_path / "batch_sizes.json")
    assert len(kept.arms) == 3 * 6
    assert kept.findings[0].about == "unfinished"
    assert {"speed", "accuracy"} <= {finding.about for finding in kept.findings}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tiny_study_runs_whole(data, tmp_path):
    flags = ("--norms", "leave")
    command = BatchSizes(
        data=data,
        out=tmp_path,
        recipe=RECIPE,
        epochs=2,
        seeds=(0,),
        sizes=(4, 8),
        device="cpu",
        equal_time=False,
        flags=flags,
    )
    study = measure_batch_sizes(command)
    assert len(study.arms) == 6
    assert not [result.error for result in study.arms if result.error]
    assert all(len(result.epochs) == 2 and result.epochs[-1].top1 is not None for result in study.arms)
    assert {"speed", "accuracy", "bigger_is_better"} <= {finding.about for finding in study.findings}
