import math

import msgspec
import pytest

from models.errors import RecipeError
from tests.training.small import RECIPE
from training.recipe import read_recipe
from training.studies.arms import Arm, ArmResult, EpochResult
from training.studies.batch_sizes import BatchSizes, equal_time_plan, measure_batch_sizes, plots, tables
from training.studies.batch_sizes_findings import findings
from training.studies.batch_sizes_grid import Cell, Found, Grid, grid_of
from training.studies.plots import draw
from training.studies.report import read_study

GRID = Grid((16, 64, 256), "square_root", 3e-5, 9e-5, 16)
SPEED = {16: 100.0, 64: 290.0, 256: 295.0}
PICTURES = 1000


def planted(top1, *, by_time=None, speed=SPEED, seeds=(0, 1, 2), device="cuda", cpu=None, failing=(), judged=10**6):
    """Four epochs of every arm; top-1 in percent is a function of the cell, and seeds move it by a tenth of a point."""
    runs = {GRID.name(cell): cell for cell in GRID.cells}

    def epochs(cell, seed, value):
        moved = value(cell) + seed / 10 + (cell.size > 16) * 0.05 * (seed - 1)
        pace, peak = speed[cell.size], 1 + cell.size / 10
        return [EpochResult(n, PICTURES / pace, pace, moved / 100, judged, 1.0, peak) for n in range(1, 5)]

    def result(arm, seed, value):
        if arm.name in failing:
            return ArmResult(arm, seed, [], None, "error (out_of_memory): it does not fit.")
        return ArmResult(arm, seed, epochs(runs[arm.name], seed, value), 1.0)

    def results(value):
        return [result(arm, seed, value) for arm in GRID.arms for seed in seeds]

    return Found(GRID, results(top1), results(by_time or top1), device, cpu)


def told(found, about):
    return [finding.text for finding in findings(found) if finding.about == about]


def answers(found):
    time, epochs = told(found, "bigger_is_better")
    assert time.startswith("Is bigger better, after equal time? ")
    assert epochs.startswith("Is bigger better, after equal epochs? ")
    return time.partition("? ")[2], epochs.partition("? ")[2]


def test_bigger_is_better_where_every_larger_batch_is():
    found = planted(lambda cell: 70 + math.log2(cell.size))
    assert answers(found) == ("Yes: all 8 comparisons with the smallest batch are better.",) * 2


def test_bigger_is_not_better_where_some_are_worse_and_none_better():
    found = planted(lambda cell: 70 - (cell.size == 256))
    assert answers(found)[1] == "No: of 8 comparisons with the smallest batch 0 are better, 4 worse, 4 not told apart."


def test_equal_time_may_answer_otherwise_than_equal_epochs():
    found = planted(lambda cell: 70 - cell.size / 100, by_time=lambda cell: 70 + cell.size / 100)
    time, epochs = answers(found)
    assert time.startswith("Yes")
    assert epochs.startswith("No: of 8 comparisons with the smallest batch 0 are better, 8 worse")


def test_it_depends_where_scaled_rates_gain_and_unscaled_ones_lose():
    found = planted(lambda cell: 70 + (1 if cell.scaled else -1) * (cell.size > 16))
    assert answers(found)[1].startswith("It depends on the setting: of 8 comparisons")
    assert "4 are better, 4 worse" in answers(found)[1]
    light, heavy = told(found, "scaling")
    assert "at batch 256, light augmentation, equal epochs: +2.0 points (+2.0 to +2.0), better beside unscaled" in light
    assert "square root of the batch, as derived for Adam (Malladi et al. 2022)" in heavy


def test_partly_where_only_one_augmentation_gains():
    found = planted(lambda cell: 70 + 2 * (cell.augmentation == "heavy" and cell.size > 16))
    assert (
        answers(found)[1] == "Partly: of 8 comparisons with the smallest batch 4 are better, 0 worse, 4 not told apart."
    )
    light = [text for text in told(found, "accuracy") if "epochs, light" in text and "unscaled" in text]
    assert light == [
        "After equal epochs, light augmentation, unscaled rate: beside batch 16, not told apart: 64 (+0.0 points), "
        "256 (+0.0 points)."
    ]
    smallest, *_, largest = told(found, "augmentation")
    assert smallest.startswith("Heavy augmentation at batch 16, scaled rate, equal epochs: +0.0 points")
    assert "+2.0 points" in largest


def test_one_seed_tells_nothing_apart():
    found = planted(lambda cell: cell.size / 10, seeds=(0,))
    assert answers(found)[1].startswith("Not shown: none of 8 comparisons")


def test_a_few_validation_pictures_tell_a_point_apart_from_nothing():
    found = planted(lambda cell: 70 + (cell.size > 16), judged=100)
    assert answers(found)[1].startswith("Not shown: none of 8 comparisons")


def test_speed_names_the_smallest_batch_that_is_as_fast():
    text = told(planted(lambda cell: 70.0), "throughput")[0]
    assert text == (
        "Light augmentation: batch 256 is fastest with 295.0 pictures/s, 2.95 times batch 16; batch 64 is the smallest "
        "within 3 % of it."
    )


def test_larger_batches_that_buy_no_speed_are_told():
    text = told(planted(lambda cell: 70.0, speed={16: 100.0, 64: 101.0, 256: 90.0}), "throughput")[0]
    assert text.endswith("batch 16, the smallest, is within 3 % of it: larger ones buy no speed.")


def test_memory_is_told_by_picture():
    assert told(planted(lambda cell: 70.0), "memory") == [
        "Memory: 2.60 GB at batch 16, 26.60 GB at batch 256: 100 MB for every picture more."
    ]


def test_the_gain_of_a_gpu_is_measured_or_said_to_be_missing():
    cpu = ArmResult(Arm("cpu", (), ""), 0, [EpochResult(1, 60.0, 2.5, 0.1, 500, 3.0, None)], 5.0)
    assert (
        "100.0 pictures/s and the same machine's CPU 2.50 in FP32, both at batch 16: 40 times"
        in (told(planted(lambda cell: 70.0, cpu=cpu), "cpu_to_gpu")[0])
    )
    assert "not measured" in told(planted(lambda cell: 70.0), "cpu_to_gpu")[0]
    assert (
        "not measured: this study trained on the CPU" in told(planted(lambda cell: 70.0, device="cpu"), "cpu_to_gpu")[0]
    )


def test_a_batch_that_does_not_fit_leaves_the_others_to_be_compared():
    found = planted(lambda cell: 70.0, failing={"b256-heavy-scaled"})
    assert told(found, "failed") == ["b256-heavy-scaled gave no figures: error (out_of_memory): it does not fit."]
    assert "none of 7 comparisons" in answers(found)[1]
    row = next(row for row in tables(found)[1].rows if row[:2] == ["256", "scaled"])
    assert set(row[2:]) == {"–"}


def test_scaled_rates_follow_the_rule_from_the_recipe_s_own_batch():
    recipe = read_recipe(RECIPE)  # batch 4, 1e-3
    flags = {arm.name: " ".join(arm.flags) for arm in grid_of(recipe, (16, 4), "square_root").arms}
    assert "--backbone-lr 0.002 --head-lr 0.002" in flags["b16-light-scaled"]
    assert "--backbone-lr 0.001 --head-lr 0.001" in flags["b16-light-unscaled"]
    assert "b4-light-scaled" not in flags  # the same run
    linear = {arm.name: " ".join(arm.flags) for arm in grid_of(recipe, (4, 16), "linear").arms}
    assert "--backbone-lr 0.004" in linear["b16-heavy-scaled"]


def test_equal_time_lays_out_the_epochs_that_fit():
    needed = {arm.name: epochs for arm, epochs in equal_time_plan(planted(lambda cell: 70.0))}
    assert set(needed.values()) == {12}  # 40 s at 3.45 s or 3.39 s an epoch
    assert not any(name.startswith("b16") for name in needed)  # theirs are the runs of equal epochs


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


def test_results_are_read_by_cell():
    assert len(planted(lambda cell: 70.0).results(Cell(64, "heavy", scaled=True))) == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sizes": (8,)}, "at least two different ones"),
        ({"sizes": (8, 8, 16)}, "each once"),
        ({"sizes": (0, 8)}, "from 1 on"),
        ({"flags": ("--mixup", "0")}, "the study itself decides this flag"),
    ],
)
def test_sizes_without_sense_are_refused_before_anything_runs(changes, told, data, tmp_path):
    command = {"data": data, "out": tmp_path, "recipe": RECIPE, "device": "cpu"} | changes
    with pytest.raises(RecipeError, match=told):
        measure_batch_sizes(BatchSizes(**command))
    assert not (tmp_path / "runs").exists()


def test_a_study_runs_equal_epochs_then_equal_time(data, tmp_path, monkeypatch):
    def trained(recipe, arm, seed, folder, common, **_limits):
        """Batch 8 is twice as fast as batch 4."""
        epochs, pace = int(common[common.index("--epochs") + 1]), 1.0 if arm.name.startswith("b4") else 0.5
        asked.append((folder.name, arm.name, seed, epochs))
        results = [EpochResult(n, pace, 30 / pace, 0.5 + seed / 10, 3, 1.0, None) for n in range(1, epochs + 1)]
        return ArmResult(arm, seed, results, 0.1)

    asked = []
    monkeypatch.setattr("training.studies.rounds.run_arm", trained)
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
    assert asked[:6] == [("equal-epochs", name, 0, 3) for name in names]
    assert asked[6:12] == [("equal-epochs", name, 1, 3) for name in [*names[1:], names[0]]]
    assert sorted(asked[12:]) == sorted(("equal-time", name, seed, 6) for name in names[2:] for seed in (0, 1))
    timed = [(each["arm"]["name"], each["seed"]) for each in study.details["equal_time"]]
    assert sorted(timed) == sorted((name, seed) for name in names for seed in (0, 1))
    assert msgspec.json.encode(read_study(tmp_path / "batch_sizes.json")) == msgspec.json.encode(study)
    assert {file.suffix for file in tmp_path.glob("batch_sizes*")} == {".json", ".md", ".svg"}


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
    assert {"throughput", "accuracy", "bigger_is_better"} <= {finding.about for finding in study.findings}
