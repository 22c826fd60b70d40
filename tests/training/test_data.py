import shutil

import pytest
import torch

from models.errors import DataError
from models.preprocess import InputSpec, picture_to_input
from tests.training.small import command, write_pictures
from training.data import input_spec, judged_loader, label_names, training_loader
from training.manifest import Manifest
from training.prepare import Folder, prepare
from training.recipe import DataRecipe


def batches(data, tmp_path, workers, epoch=1, first_picture=8, seed=0):
    recipe = command(data, tmp_path / "run", "--workers", workers, "--seed", seed).recipe
    loader, sampler = training_loader(Manifest(data), recipe, pin=False)
    sampler.epoch, sampler.first_picture, sampler.side_px = epoch, first_picture, 40
    return list(loader)


def equal(first, second):
    return len(first) == len(second) and all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_training_pictures_do_not_depend_on_the_number_of_loader_processes(data, tmp_path):
    alone = batches(data, tmp_path, workers=0)
    assert alone[0][0].shape == (4, 3, 40, 40)
    assert equal(alone, batches(data, tmp_path, workers=2))
    assert not equal(alone, batches(data, tmp_path, workers=0, seed=1))


def test_training_labels_are_those_of_the_pictures(data, tmp_path):
    manifest = Manifest(data)
    recipe = command(data, tmp_path / "run").recipe
    loader, sampler = training_loader(manifest, recipe, pin=False)
    sampler.side_px = 32
    draws = [draw for batch in sampler for draw in batch]
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == [int(manifest.labels[draw.row]) for draw in draws]
    for draw, name in zip(draws, label_names(manifest, labels.tolist()), strict=True):
        assert name in manifest.path(draw.row).parent.name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_vanished_is_one_sentence_that_names_it(workers, tmp_path):
    root = write_pictures(tmp_path / "flowers", per_class=8)
    prepare(Folder(pictures=root, out=tmp_path / "data", workers=1))
    manifest = Manifest(tmp_path / "data")
    lost = manifest.path(int(manifest.rows_of("train")[0]))
    lost.unlink()
    told = None
    try:  # pytest.raises would keep the loader's processes alive until the next collection of garbage, and that waits
        batches(tmp_path / "data", tmp_path, workers, first_picture=0)
    except DataError as error:
        told = str(error)
    assert str(lost) in told
    assert told.endswith("restore the file or run training/prepare.py again.")
    assert "\n" not in told


def test_a_picture_that_was_damaged_later_is_told(tmp_path):
    root = write_pictures(tmp_path / "flowers", per_class=8)
    prepare(Folder(pictures=root, out=tmp_path / "data", workers=1))
    manifest = Manifest(tmp_path / "data")
    damaged = manifest.path(int(manifest.rows_of("validation")[0]))
    shutil.copy(__file__, damaged)
    loader = judged_loader(manifest, manifest.rows_of("validation"), InputSpec(32, 32, 32), DataRecipe(workers=0))
    with pytest.raises(DataError, match=str(damaged.name)):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_judged_pictures_are_exactly_what_is_served(manifest, workers):
    spec = InputSpec(height=40, width=40, train_px=32, crop_fraction=0.9)
    rows = manifest.rows_of("validation")[::-1].copy()
    (batch,) = judged_loader(manifest, rows, spec, DataRecipe(workers=workers))
    for row, pixels, label in zip(rows, *batch, strict=True):
        served, _ = picture_to_input(manifest.path(int(row)).read_bytes(), spec)
        assert torch.equal(pixels, torch.from_numpy(served))
        assert label == manifest.labels[row]


def test_the_input_that_is_served_follows_from_the_recipe(data, tmp_path):
    flags = ("--picture-px", 64, "--serve-px", 96, "--crop-fraction", 0.9)
    spec = input_spec(command(data, tmp_path / "run", *flags).recipe)
    assert spec == InputSpec(height=96, width=96, train_px=64, crop_fraction=0.9)
