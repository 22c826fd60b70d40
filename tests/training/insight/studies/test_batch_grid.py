import msgspec
import pytest

from tests.training.insight.studies.planted_grid import GRID, planted
from tests.training.small import RECIPE
from training.insight.studies.batch_grid import Cell, Grid
from training.recipe import read_recipe


def grid_of(recipe, sizes):
    return Grid(sizes, ("light", "heavy"), recipe.schedule)


def flags(grid):
    return {arm.name: " ".join(arm.flags) for arm in grid.arms}


def test_scaled_rates_follow_the_rule_from_the_recipe_s_own_batch():
    recipe = read_recipe(RECIPE)  # batch 4, 1e-3
    root = flags(grid_of(recipe, (4, 16)))
    assert "--backbone-lr 0.002 --head-lr 0.002" in root["b16-light-scaled"]
    assert "--backbone-lr 0.001 --head-lr 0.001" in root["b16-light-unscaled"]
    assert "b4-light-scaled" not in root  # the same run


def test_accumulated_batches_are_the_recipe_s_own_batch():
    recipe = read_recipe(RECIPE)
    fourfold = msgspec.structs.replace(recipe, schedule=msgspec.structs.replace(recipe.schedule, accumulate=4))
    found = flags(grid_of(fourfold, (16, 64)))
    assert "b16-light-scaled" not in found
    assert "--batch-size 64 --accumulate 1 --backbone-lr 0.002" in found["b64-light-scaled"]


def test_results_are_read_by_cell():
    found = planted(lambda cell: 70.0, failing={"b64-light-scaled"})
    assert len(found.results(Cell(64, "heavy", scaled=True))) == 3
    assert found.results(Cell(64, "light", scaled=True)) == []
    assert GRID.name(Cell(16, "heavy", scaled=True)) == GRID.name(Cell(16, "heavy", scaled=False))


def test_the_equal_time_is_the_same_for_both_augmentations():
    found = planted(lambda cell: 70.0, heavy=0.5)  # 40 s with light augmentation, 80 s with heavy
    assert found.budget_s == pytest.approx(40)
