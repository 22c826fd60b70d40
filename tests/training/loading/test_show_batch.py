import numpy as np
import torch
from PIL import Image

from models.preprocess import InputSpec
from tests.training.small import command
from training.dataset.manifest import Manifest
from training.loading.data import caption, show_batch, to_pictures
from training.loading.negatives import RunInput


def test_the_sheet_shows_every_picture_of_the_first_batch(data, tmp_path):
    flags = ("--batch-size", 9, "--progressive", 0, 48, 1, 64, "--picture-px", 64, "--mix-share", 0)
    recipe = command(data, tmp_path / "run", *flags).recipe
    show_batch(Manifest(data), RunInput.of(recipe), tmp_path / "new" / "batch.png")
    sheet = Image.open(tmp_path / "new" / "batch.png")
    assert sheet.format == "PNG"
    assert sheet.size == (3 * 180, 3 * (48 + 2 * 14))
    pixels = np.asarray(sheet).reshape(3, 76, 3, 180, 3).swapaxes(1, 2)
    for tile in pixels.reshape(9, 76, 180, 3):
        assert tile[28:, :48].std() > 10  # a picture
        assert (tile[:28] < 100).any()  # its name
    assert not (tmp_path / "run").exists()


def test_a_mixed_picture_has_two_names_the_larger_share_first(manifest):
    assert caption(manifest, torch.tensor([0.3, 0.7, 0.0])) == "70% Iris caerulea, 30% Buttercup"
    assert caption(manifest, torch.tensor([0.0, 0.0, 1.0])) == "Rosa rubra"


def test_pictures_are_recovered_from_network_input():
    spec = InputSpec(height=8, width=8, train_px=8)
    original = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    mean, std = np.array(spec.mean), np.array(spec.std)
    pixels = torch.from_numpy(((original / 255 - mean) / std).transpose(2, 0, 1)).float()[None]
    (picture,) = to_pictures(pixels, spec)
    assert (np.asarray(picture) == original).all()
