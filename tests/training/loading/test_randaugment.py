import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from tests.models.pictures import foliage
from training.loading.augment import OPERATIONS, rand_augment, seeded

FILL = (124, 116, 104)
PICTURE = foliage((96, 96)).point(lambda value: 20 + value * 3 // 4)  # leaves something for autocontrast to do


def torchvision_affine(image, **change):
    keep = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    return TF.affine(image, **(keep | change), fill=list(FILL))


def degrees(level):
    return math.degrees(math.atan(0.3 * level))


# The operations of torchvision 0.29's RandAugment, as its public functions; level: share of the largest magnitude.
EXPECTED = {
    "Identity": lambda image, level: image,
    "ShearX": lambda image, level: torchvision_affine(image, shear=[degrees(level), 0.0], center=[0, 0]),
    "ShearY": lambda image, level: torchvision_affine(image, shear=[0.0, degrees(level)], center=[0, 0]),
    "TranslateX": lambda image, level: torchvision_affine(image, translate=[int(150 / 331 * 96 * level), 0]),
    "TranslateY": lambda image, level: torchvision_affine(image, translate=[0, int(150 / 331 * 96 * level)]),
    "Rotate": lambda image, level: TF.rotate(image, 30 * level, fill=list(FILL)),
    "Brightness": lambda image, level: TF.adjust_brightness(image, 1 + 0.9 * level),
    "Color": lambda image, level: TF.adjust_saturation(image, 1 + 0.9 * level),
    "Contrast": lambda image, level: TF.adjust_contrast(image, 1 + 0.9 * level),
    "Sharpness": lambda image, level: TF.adjust_sharpness(image, 1 + 0.9 * level),
    "Posterize": lambda image, level: TF.posterize(image, 8 - round(4 * abs(level))),
    "Solarize": lambda image, level: TF.solarize(image, 255 * (1 - abs(level))),
    "AutoContrast": lambda image, level: TF.autocontrast(image),
    "Equalize": lambda image, level: TF.equalize(image),
}


def square(image=PICTURE):
    return torch.from_numpy(np.array(image))


@pytest.mark.parametrize("magnitude", [0, 7, 30])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_that_of_torchvision(name, magnitude):
    for level in (magnitude / 30, -magnitude / 30):
        ours = np.asarray(OPERATIONS[name](PICTURE, level, FILL)).astype(int)
        theirs = np.asarray(EXPECTED[name](PICTURE, level)).astype(int)
        assert np.abs(ours - theirs).max() <= 1


def test_operations_and_strengths_are_those_of_torchvision():
    theirs = v2.RandAugment()._AUGMENTATION_SPACE
    assert set(OPERATIONS) == set(theirs)
    for magnitude in (0, 7, 30):
        for name, share in (("ShearX", 0.3), ("TranslateX", 150 / 331 * 96), ("Rotate", 30), ("Contrast", 0.9)):
            strengths, signed = theirs[name]
            assert signed
            assert float(strengths(31, 96, 96)[magnitude]) == pytest.approx(share * magnitude / 30)
        assert int(theirs["Posterize"][0](31, 96, 96)[magnitude]) == 8 - round(4 * magnitude / 30)
        assert float(theirs["Solarize"][0](31, 96, 96)[magnitude]) == pytest.approx(1 - magnitude / 30)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("side_px", [1, 2, 3])
def test_the_smallest_pictures_pass(name, side_px):
    tiny = Image.new("RGB", (side_px, side_px), (10, 200, 30))
    assert OPERATIONS[name](tiny, 0.5, FILL).size == (side_px, side_px)


def test_the_input_is_not_changed():
    given = square()
    with seeded(3):
        for _ in range(50):
            rand_augment(given, 3, 30, FILL)
    assert torch.equal(given, square())
