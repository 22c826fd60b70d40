import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import RecipeError
from models.program import read_flags
from tests.make import cases
from training.evaluate import Evaluate
from training.recipe import (
    PictureRecipe,
    RunRecipe,
    check_recipe,
    check_stored_recipe,
    read_recipe,
    recipe_files,
    side_at_epoch,
    sizes_by_flags,
)
from training.toml_file import section_to_plain
from training.train import parse


def write(folder, text):
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("text", "message"), cases(__file__, "invalid_recipes"))
def test_an_invalid_recipe_is_an_error_with_its_path_and_a_remedy(text, message, tmp_path):
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(write(tmp_path, text + 5000 * text[-1] * (message == "not valid TOML")))
    assert caught.value.remedy


def test_an_empty_text_for_a_path_is_not_set(tmp_path):
    path = write(tmp_path, '[data]\ndata = ""\nshards = "kept"\n[run]\nrun = "here"')
    assert (read_recipe(path).data.data, read_recipe(path).data.shards) == (Path("data"), "kept")
    command = parse([str(path), "--run=", "--data", "", "--shards", "", "--negatives", "", "a", ""])
    assert (command.recipe.run.run, command.recipe.data.data) == (Path("here"), Path("data"))
    assert (command.recipe.data.shards, command.recipe.negatives.negatives) == ("", (Path("a"),))
    with pytest.raises(SystemExit):
        read_flags(Evaluate, ["--data", ""])


def test_the_error_of_a_missing_recipe_lists_the_known_ones(tmp_path):
    with pytest.raises(RecipeError, match="b4_5337"):
        read_recipe(tmp_path / "nowhere.toml")


def test_a_mistyped_path_never_finds_another_recipe_of_the_same_name(tmp_path):
    assert read_recipe(Path("b4_5337")).run.run == Path("runs/b4_5337")
    with pytest.raises(RecipeError, match="no such recipe"):
        read_recipe(tmp_path / "b4_5337.toml")


def test_every_recipe_of_the_project_writes_to_a_folder_of_its_own():
    runs = [read_recipe(path).run.run for path in recipe_files()]
    named = [run for run in runs if run != RunRecipe().run]
    assert len(set(named)) == len(named) >= len(runs) - 1  # own_folder leaves the name to its user


@pytest.mark.parametrize(("name", "settings"), cases(__file__, "recipes").items())
def test_a_recipe_has_what_its_users_rely_on(name, settings):
    plain = json.loads(json.dumps(section_to_plain(read_recipe(Path(name)))))
    assert {part: {key: plain[part][key] for key in known} for part, known in settings.items()} == settings


@pytest.mark.parametrize("path", recipe_files(), ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_valid_and_survives_plain_values_and_json(path):
    recipe = read_recipe(path)
    assert path.read_text().startswith("# ")  # what it is for
    plain = section_to_plain(recipe)
    assert check_recipe(plain, origin="plain") == recipe
    assert check_recipe(json.loads(json.dumps(plain)), origin="JSON") == recipe
    assert plain["run"]["run"] == tomllib.loads(path.read_text()).get("run", {}).get("run", "runs/run")


def test_the_recipe_of_a_checkpoint_is_read_without_its_normalization_and_that_of_another_version_is_refused():
    recipe = read_recipe(Path("debug"))
    plain = section_to_plain(recipe)
    plain["pictures"]["mean"] = (0.5, 0.5, 0.5)
    assert check_stored_recipe(plain, origin="new.pt") == recipe
    plain["data"]["cache_gb"] = 2.0
    with pytest.raises(RecipeError, match=r"old\.pt was written by another version.*cache_gb.*--weights"):
        check_stored_recipe(plain, origin="old.pt")


def test_a_flag_overrides_the_recipe_and_the_recipe_the_default(tmp_path):
    path = write(tmp_path, "[schedule]\nepochs = 7\nbatch_size = 8")
    flags = ["--epochs", "9", "--progressive", "0", "64", "5", "96", "--no-channels-last", "--data", "elsewhere"]
    recipe = parse([str(path), *flags]).recipe
    schedule = recipe.schedule
    assert (schedule.epochs, schedule.batch_size, schedule.accumulate) == (9, 8, 1)
    assert recipe.pictures.progressive == ((0, 64), (5, 96))
    assert (recipe.hardware.channels_last, str(recipe.data.data)) == (False, "elsewhere")


def test_a_misspelt_flag_is_refused_with_the_nearest(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([str(write(tmp_path, "")), "--epochz", "3"])
    assert ended.value.code != 0
    assert "--epochs" in capsys.readouterr().err


def test_a_missing_recipe_name_is_an_error():
    with pytest.raises(RecipeError, match="no recipe is given"):
        parse(["--epochs", "3"])


def test_cuda_graphs_that_accumulate_are_refused_by_name():
    parse(["debug", "--compile", "reduce-overhead"])
    parse(["debug", "--compile", "default", "--accumulate", "2"])
    with pytest.raises(RecipeError, match=r"reduce-overhead and accumulate = 2"):
        parse(["debug", "--compile", "reduce-overhead", "--accumulate", "2"])


STEPS = PictureRecipe(picture_px=128, progressive=((0, 64), (5, 96), (9, 128)))


def sizes_of(*flags):
    """The sizes of a recipe with these flags: of the training, all its steps, and of the service."""
    pictures = parse(["own_folder", *flags]).recipe.pictures
    return pictures.picture_px, [side_px for _, side_px in pictures.progressive], pictures.serve_px


@pytest.mark.parametrize(("epoch", "side"), cases(__file__, "sides"))
def test_the_side_is_that_of_the_last_step_that_has_begun(epoch, side):
    assert side_at_epoch(STEPS, epoch) == side


@pytest.mark.parametrize(("flags", "sizes"), cases(__file__, "sizes"))
def test_one_flag_of_a_size_decides_on_all_sizes_and_two_keep_theirs(flags, sizes):
    assert [*sizes_of(*flags.split())] == sizes


def test_both_flags_together_must_agree():
    with pytest.raises(RecipeError, match=r"picture_px = 320 and a last step.*of 96 px.*one of the two flags"):
        sizes_of("--picture-px", "320", "--progressive", "0", "96")


def test_a_recipe_with_two_sizes_is_refused(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text("[pictures]\npicture_px = 96\nprogressive = [[0, 64], [3, 128]]\n")
    with pytest.raises(RecipeError, match=r"two\.toml has two sizes.*96 and .* 128 px"):
        read_recipe(path)


@pytest.mark.parametrize("epochs", [(3, 0), (3, 3)])
def test_steps_that_are_out_of_order_are_refused(epochs):
    plain = section_to_plain(read_recipe(Path("own_folder")))
    plain["pictures"]["progressive"] = [(epochs[0], 260), (epochs[1], 320)]
    with pytest.raises(RecipeError, match="order of their epochs"):
        check_recipe(plain, "drawn")


@given(
    st.lists(st.integers(32, 2048), min_size=1, max_size=5),
    st.integers(32, 2048),
    st.sampled_from([["picture_px"], ["progressive"], ["epochs"], []]),
)
def test_whatever_flag_is_given_the_last_step_is_the_size(sides, picture_px, flags):
    of_file = sides[-1]
    steps = tuple(enumerate(sides))
    pictures = PictureRecipe(picture_px=picture_px if "picture_px" in flags else of_file, progressive=steps)
    found = sizes_by_flags(pictures, of_file, flags)
    assert found.progressive[-1][1] == found.picture_px == pictures.picture_px
    assert [epoch for epoch, _ in found.progressive] == [epoch for epoch, _ in steps]
    assert all(side_px >= 32 for _, side_px in found.progressive)
    if "picture_px" not in flags:
        assert (found.progressive, found.serve_px) == (steps, pictures.serve_px)
