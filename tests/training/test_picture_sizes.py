from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import RecipeError
from training.recipe import (
    PictureRecipe,
    check_recipe,
    check_stored_recipe,
    read_recipe,
    recipe_to_plain,
    side_at_epoch,
    sizes_by_flags,
)
from training.train import parse

STEPS = PictureRecipe(picture_px=128, progressive=((0, 64), (5, 96), (9, 128)))


def sizes_of(*flags, recipe="own_folder"):
    """The sizes of a recipe with these flags: the last one, and all steps."""
    pictures = parse([recipe, *flags]).recipe.pictures
    return pictures.picture_px, [side_px for _, side_px in pictures.progressive]


@pytest.mark.parametrize(("epoch", "side"), [(0, 64), (4, 64), (5, 96), (8, 96), (9, 128), (50, 128)])
def test_the_side_is_that_of_the_last_step_that_has_begun(epoch, side):
    assert side_at_epoch(STEPS, epoch) == side


def test_before_the_first_step_and_without_steps_pictures_have_their_full_side():
    assert side_at_epoch(PictureRecipe(picture_px=64, progressive=((3, 64),)), 2) == 64
    assert side_at_epoch(PictureRecipe(picture_px=380), 7) == 380


def test_the_flag_of_the_size_scales_all_steps():
    assert sizes_of() == (320, [260, 320])
    assert sizes_of("--picture-px", "160") == (160, [130, 160])
    assert sizes_of("--picture_px=96") == (96, [78, 96])


def test_the_flag_of_the_steps_sets_the_size():
    assert sizes_of("--progressive", "0", "64", "3", "128") == (128, [64, 128])
    assert sizes_of("--progressive", "0", "64", recipe="b4_5337") == (64, [64])


def served(*flags):
    """The sizes of training and of the service."""
    pictures = parse(["own_folder", *flags]).recipe.pictures
    return pictures.picture_px, pictures.serve_px


def test_the_size_of_the_service_follows_that_of_the_training_unless_it_is_given():
    assert served() == (320, 380)
    assert served("--picture-px", "160") == (160, 190)
    assert served("--progressive", "0", "64", "3", "128") == (128, 152)
    assert served("--picture-px", "160", "--serve-px", "380") == (160, 380)
    assert served("--serve-px", "400") == (320, 400)
    assert served("--picture-px", "2000") == (2000, 2048)


def test_without_steps_the_size_is_that_of_its_flag():
    assert sizes_of("--progressive") == (320, [])
    assert sizes_of("--progressive", "--picture-px", "48") == (48, [])


def test_both_flags_together_must_agree():
    assert sizes_of("--progressive", "0", "64", "3", "128", "--picture-px", "128") == (128, [64, 128])
    with pytest.raises(RecipeError, match=r"picture_px = 320 and a last step.*of 96 px.*one of the two flags"):
        sizes_of("--picture-px", "320", "--progressive", "0", "96")


def test_a_recipe_with_two_sizes_is_refused(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text("[pictures]\npicture_px = 96\nprogressive = [[0, 64], [3, 128]]\n")
    with pytest.raises(RecipeError, match=r"two\.toml has two sizes.*96 and .* 128 px"):
        read_recipe(path)


@pytest.mark.parametrize("epochs", [(3, 0), (3, 3)])
def test_steps_that_are_out_of_order_are_refused(epochs):
    plain = recipe_to_plain(read_recipe(Path("own_folder")))
    plain["pictures"]["progressive"] = [(epochs[0], 260), (epochs[1], 320)]
    with pytest.raises(RecipeError, match="order of their epochs"):
        check_recipe(plain, "drawn")


def test_an_old_checkpoint_has_the_size_that_it_was_trained_with():
    plain = recipe_to_plain(read_recipe(Path("own_folder")))
    plain["pictures"]["picture_px"] = 96  # as earlier versions wrote it with --picture-px 96
    assert check_stored_recipe(plain, "old.pt").pictures.picture_px == 320


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
