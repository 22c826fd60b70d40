from types import SimpleNamespace

import pytest
import timm
from hypothesis import given
from hypothesis import strategies as st

from models.errors import CheckpointError, RecipeError
from models.preprocess import InputSpec
from tests.make import cases
from training.network_input import input_spec, require_side, stored_input_spec, with_fitting_sizes, with_input
from training.recipe import NetworkRecipe, PictureRecipe, Recipe
from training.toml_file import section_to_plain

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)


def recipe_for(architecture, **pictures):
    return Recipe(network=NetworkRecipe(architecture=architecture), pictures=PictureRecipe(**pictures))


@pytest.mark.parametrize(("architecture", "mean", "std", "interpolation"), cases(__file__, "inputs"))
def test_the_input_is_that_of_the_published_weights(architecture, mean, std, interpolation):
    spec = input_spec(recipe_for(architecture))
    assert ([*spec.mean], [*spec.std], spec.interpolation) == (mean, std, interpolation)


def test_every_network_of_timm_has_an_input_that_a_bundle_can_hold():
    for architecture in timm.list_models():
        input_spec(recipe_for(architecture))


def test_a_checkpoint_holds_its_normalization_whatever_became_of_the_initial_weights():
    recipe = recipe_for("vit_small_patch16_224", serve_px=224)
    stored = with_input(section_to_plain(recipe), input_spec(recipe))
    assert stored_input_spec(stored, "new.pt") == input_spec(recipe)
    stored["pictures"] |= {"mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bilinear"}  # once a setting
    spec = stored_input_spec(stored, "old.pt")
    assert (spec.mean, spec.std, spec.interpolation, spec.height) == ((0, 0, 0), (1, 1, 1), "bilinear", 224)


def test_a_damaged_normalization_is_an_error_with_its_file():
    stored = section_to_plain(recipe_for("efficientnet_b4"))
    stored["pictures"]["std"] = (0.0, 1.0, 1.0)
    with pytest.raises(CheckpointError, match=r"normalization in bad\.pt"):
        stored_input_spec(stored, "bad.pt")


def test_a_training_that_starts_from_a_bundle_has_its_input(tmp_path, monkeypatch):
    spec = InputSpec(height=32, width=32, train_px=32, interpolation="bilinear", mean=CLIP_MEAN, std=CLIP_STD)
    bundle = SimpleNamespace(record=SimpleNamespace(input=spec))
    monkeypatch.setattr("training.network_input.load_bundle", {tmp_path: bundle}.get)
    found = input_spec(Recipe(network=NetworkRecipe(weights=str(tmp_path))))
    assert (found.interpolation, found.mean, found.std) == ("bilinear", CLIP_MEAN, CLIP_STD)


@pytest.mark.parametrize("weights", ["imagenet", "none"])
def test_a_folder_named_like_published_weights_is_no_bundle(weights, tmp_path, monkeypatch):
    (tmp_path / weights).mkdir()
    monkeypatch.chdir(tmp_path)
    assert input_spec(Recipe(network=NetworkRecipe(weights=weights))).mean == IMAGENET_MEAN


def test_sizes_become_whole_patches_and_the_note_says_so():
    recipe = recipe_for("test_vit", picture_px=320, progressive=((0, 260), (15, 320)), serve_px=380)
    found, note = with_fitting_sizes(recipe)
    assert (found.pictures.progressive, found.pictures.picture_px) == (((0, 256), (15, 320)), 320)
    assert found.pictures.serve_px == 384
    assert "patches of 16 px" in note
    assert "256, 320 px in place of 260, 320 px" in note
    assert "384 px in place of 380 px" in note
    assert with_fitting_sizes(found) == (found, "")


def test_without_patches_every_size_fits():
    recipe = recipe_for("efficientnet_b4", picture_px=301, serve_px=383)
    assert with_fitting_sizes(recipe) == (recipe, "")
    require_side("efficientnet_b4", 383)


def test_a_network_of_one_size_is_refused_with_its_size():
    with pytest.raises(RecipeError, match=r"one size only.*expected 224 px.*--picture-px 224 --progressive --serve-px"):
        with_fitting_sizes(recipe_for("swin_tiny_patch4_window7_224"))
    with pytest.raises(RecipeError, match=r"one size only.*got 256 px; expected 224 px.*leave out --serve-px"):
        require_side("swin_tiny_patch4_window7_224", 256)
    require_side("swin_tiny_patch4_window7_224", 224)
    fitting = recipe_for("swin_tiny_patch4_window7_224", picture_px=224, serve_px=224)
    assert with_fitting_sizes(fitting) == (fitting, "")


def test_a_size_of_the_service_that_cuts_a_patch_is_refused():
    with pytest.raises(RecipeError, match=r"got 380 px; expected a multiple of 16 px.*take 384 px"):
        require_side("test_vit", 380)


@pytest.fixture(scope="module")
def of_patches():
    """The size of a patch is found once: it takes a network without weights."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("training.network_input.side_multiple", {"test_vit": 16, "eva02_tiny_patch14_224": 14}.get)
        yield


@given(
    st.sampled_from([("test_vit", 16), ("eva02_tiny_patch14_224", 14)]),
    st.lists(st.integers(32, 2048), max_size=4),
    st.integers(32, 2040),
)
def test_whatever_the_sizes_they_become_whole_patches_nearby(of_patches, network, steps, serve_px):
    architecture, patch_px = network
    last_px = steps[-1] if steps else 96
    asked = recipe_for(architecture, picture_px=last_px, progressive=tuple(enumerate(steps)), serve_px=serve_px)
    found, _ = with_fitting_sizes(asked)
    before, after = (
        [each.pictures.picture_px, each.pictures.serve_px, *(px for _, px in each.pictures.progressive)]
        for each in (asked, found)
    )
    assert all(px % patch_px == 0 and px >= 32 for px in after)
    assert all(abs(new - old) <= patch_px for new, old in zip(after, before, strict=True))
    assert not steps or found.pictures.progressive[-1][1] == found.pictures.picture_px
