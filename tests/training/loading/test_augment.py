import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from models.preprocess import InputSpec, picture_to_input
from tests.models.pictures import as_camera_file, encode
from tests.training.small import draw
from training.loading import augment
from training.loading.augment import BatchMixer, Normalizer, random_crop, random_input, seeded
from training.recipe import AugmentRecipe

SPEC = InputSpec(height=32, width=32, train_px=32)
EVERYTHING = AugmentRecipe(erase=0.5, mixup=0.2, cutmix=1.0)
NOTHING = AugmentRecipe(crop_scale_min=1.0, randaugment_magnitude=0)


PICTURE = encode(draw("crimson", "ellipse", 1), "JPEG")


def seeded_input(*seed, data=PICTURE, recipe=EVERYTHING, side_px=32):
    with seeded(*seed):
        return random_input(data, recipe, SPEC, side_px)


def test_an_input_depends_on_its_seed_alone():
    first = seeded_input(1, 2, 3)
    torch.manual_seed(99)
    torch.rand(5)
    assert torch.equal(first, seeded_input(1, 2, 3))
    for other in ((1, 2, 4), (1, 3, 3), (2, 2, 3), (12, 3)):
        assert not torch.equal(first, seeded_input(*other))


def test_the_global_generator_is_restored():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    seeded_input(1)
    BatchMixer(EVERYTHING, 3, seed=1)(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]), step=5)
    assert torch.equal(before, torch.get_rng_state())


def test_inputs_are_resized_and_normalized_as_in_service(monkeypatch):
    monkeypatch.setattr(augment, "FLIPPED", 0.0)
    monkeypatch.setattr(augment, "CROP_RATIO_MAX", 1.0)
    square = encode(draw("crimson", "ellipse", 1, size=(64, 64)), "PNG")
    served, _ = picture_to_input(square, SPEC)
    pixels = Normalizer(SPEC, torch.device("cpu"))(seeded_input(1, data=square, recipe=NOTHING)[None])
    level = 1 / (255 * min(SPEC.std))
    assert np.abs(pixels[0].numpy() - served).max() < 1.01 * level  # two libraries may round a value differently


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_normalizing_follows_the_formula(layout):
    spec = InputSpec(height=8, width=8, train_px=8, mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4))
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3 * 2).reshape(2, 3, 8, 32).contiguous(memory_format=layout)
    normalized = Normalizer(spec, torch.device("cpu"))(pixels)
    expected = (pixels.numpy() / 255 - np.reshape(spec.mean, (3, 1, 1))) / np.reshape(spec.std, (3, 1, 1))
    assert normalized.dtype == torch.float32
    assert normalized.is_contiguous(memory_format=torch.channels_last)
    assert np.abs(normalized.numpy() - expected).max() < 1e-5


def test_half_of_the_pictures_are_mirrored(monkeypatch):
    monkeypatch.setattr(augment, "CROP_RATIO_MAX", 1.0)
    found = [seeded_input(seed, recipe=NOTHING) for seed in range(100)]
    upright = found[0]
    mirrored = sum(torch.equal(pixels, upright.flip(2)) for pixels in found)
    assert mirrored + sum(torch.equal(pixels, upright) for pixels in found) == 100
    assert 30 < mirrored < 70


def test_erased_rectangles_have_the_mean_color():
    recipe = msgspec.structs.replace(NOTHING, erase=1.0)
    data = encode(Image.new("RGB", (64, 64), "white"), "JPEG")
    pixels = seeded_input(2, data=data, recipe=recipe)
    erased = (pixels < 200).all(dim=0)
    assert 0.02 < float(erased.float().mean()) < 0.4
    assert pixels[:, erased].unique(dim=1).flatten().tolist() == [round(255 * mean) for mean in SPEC.mean]


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3000), (3000, 2), (7, 5), (640, 480)])
def test_crops_are_within_the_picture(size):
    with seeded(1):
        for _ in range(300):
            left, top, width, height = random_crop(*size, AugmentRecipe(crop_scale_min=0.05))
            assert width > 0
            assert height > 0
            assert 0 <= left <= left + width <= size[0]
            assert 0 <= top <= top + height <= size[1]


def test_crops_have_the_area_and_aspect_ratio_of_the_recipe():
    recipe = AugmentRecipe(crop_scale_min=0.5)
    with seeded(1):
        crops = np.array([random_crop(1000, 1000, recipe)[2:] for _ in range(500)])
    share, ratio = crops.prod(axis=1) / 1e6, crops[:, 0] / crops[:, 1]
    assert 0.49 < share.min() < 0.55 < 0.9 < share.max() <= 1.0
    assert 1 / 1.34 < ratio.min() < 0.8 < 1.25 < ratio.max() < 1.34


def test_crops_touch_every_edge():
    with seeded(1):
        crops = [random_crop(8, 8, AugmentRecipe(crop_scale_min=0.3)) for _ in range(500)]
    assert {left for left, _, width, _ in crops if width == 5} == {0, 1, 2, 3}
    assert {top for _, top, _, height in crops if height == 5} == {0, 1, 2, 3}


def test_as_many_crops_are_wide_as_are_high():
    recipe = AugmentRecipe(crop_scale_min=0.05)
    with seeded(1):
        crops = [random_crop(1000, 1000, recipe) for _ in range(2000)]
    assert 0.46 < np.mean([crop[2] > crop[3] for crop in crops]) < 0.54


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (25, 25), (2000, 30), (1201, 899)])
def test_pictures_of_any_aspect_ratio_become_inputs(size):
    data = encode(Image.new("RGB", size, "green"), "JPEG")
    for seed in range(20):
        pixels = seeded_input(seed, data=data, recipe=AugmentRecipe(crop_scale_min=0.9, randaugment_magnitude=0)).int()
        assert (pixels - torch.tensor([0, 128, 0]).view(3, 1, 1)).abs().max() <= 2


def test_a_sideways_photo_is_cropped_upright():
    halves = Image.new("RGB", (60, 60), "red")
    halves.paste("blue", (0, 0, 30, 60))  # on the left
    pixels = seeded_input(0, data=as_camera_file(halves, "JPEG", 6), recipe=NOTHING)
    red, blue = pixels[0], pixels[2]
    assert (blue[:, :12] > red[:, :12]).all()
    assert (red[:, -12:] > blue[:, -12:]).all()


@pytest.mark.parametrize("recipe", [EVERYTHING, AugmentRecipe(mixup=0.4), AugmentRecipe(cutmix=1.0)])
def test_mixed_targets_sum_to_one(recipe):
    mixer = BatchMixer(recipe, 5, seed=3)
    labels = torch.tensor([0, 1, 4, 4, 2, 3])
    for step in range(30):
        pixels, targets = mixer(torch.rand(6, 3, 16, 16), labels, step)
        assert pixels.shape == (6, 3, 16, 16)
        assert targets.shape == (6, 5)
        assert (targets >= 0).all()
        assert torch.allclose(targets.sum(dim=1), torch.ones(6))


def test_a_step_always_mixes_the_same_way():
    batch, labels = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0])
    mixer = BatchMixer(EVERYTHING, 3, seed=3)
    mixed = [mixer(batch.clone(), labels, step) for step in (5, 6, 5)]
    again = BatchMixer(EVERYTHING, 3, seed=3)(batch.clone(), labels, 5)
    assert torch.equal(mixed[0][0], mixed[2][0])
    assert torch.equal(mixed[0][1], again[1])
    assert not torch.equal(mixed[0][0], mixed[1][0])
    assert not torch.equal(mixed[0][0], BatchMixer(EVERYTHING, 3, seed=4)(batch.clone(), labels, 5)[0])


def test_the_strength_of_mixup_is_the_spread_of_its_shares():
    labels = torch.tensor([0, 1])

    def mean_share_of_the_larger(mixup):
        mixer = BatchMixer(AugmentRecipe(mixup=mixup), 2, seed=3)
        return np.mean([mixer(torch.rand(2, 3, 4, 4), labels, step)[1].max().item() for step in range(300)])

    # The mean of max(x, 1 - x) for x of Beta(a, a) is 0.90 for a = 0.2 and 0.76 for a = 0.9.
    assert mean_share_of_the_larger(0.2) == pytest.approx(0.90, abs=0.03)
    assert mean_share_of_the_larger(0.9) == pytest.approx(0.76, abs=0.03)


def test_a_share_of_the_batches_is_mixed():
    mixer = BatchMixer(AugmentRecipe(mixup=1.0, mix_share=0.25), 3, seed=3)
    batch, labels = torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 0])
    mixed = sum(not torch.equal(mixer(batch, labels, step)[0], batch) for step in range(400))
    assert 70 < mixed < 130


def test_without_mixing_batches_are_unchanged():
    batch, labels = torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 0])
    pixels, targets = BatchMixer(AugmentRecipe(), 3, seed=3)(batch, labels, 0)
    assert pixels is batch
    assert targets is labels
