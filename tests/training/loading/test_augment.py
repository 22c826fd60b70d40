import numpy as np
import pytest
import torch
from PIL import Image

from models.preprocess import InputSpec, picture_to_input
from tests.make import cases
from tests.models.pictures import encode
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


@pytest.mark.parametrize("size", cases(__file__, "picture_sizes"))
def test_crops_are_within_the_picture(size):
    with seeded(1):
        for _ in range(300):
            left, top, width, height = random_crop(*size, AugmentRecipe(crop_scale_min=0.05))
            assert 0 <= left < left + width <= size[0]
            assert 0 <= top < top + height <= size[1]


@pytest.mark.parametrize("size", cases(__file__, "picture_sizes"))
def test_pictures_of_any_aspect_ratio_become_inputs(size):
    data = encode(Image.new("RGB", size, "green"), "JPEG")
    for seed in range(20):
        pixels = seeded_input(seed, data=data, recipe=AugmentRecipe(crop_scale_min=0.9, randaugment_magnitude=0)).int()
        assert (pixels - torch.tensor([0, 128, 0]).view(3, 1, 1)).abs().max() <= 2


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


def test_without_mixing_batches_are_unchanged():
    batch, labels = torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 0])
    pixels, targets = BatchMixer(AugmentRecipe(), 3, seed=3)(batch, labels, 0)
    assert pixels is batch
    assert targets is labels
