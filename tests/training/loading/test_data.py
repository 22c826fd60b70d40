import os
import shutil

import numpy as np
import pytest
import torch

from models.cores import cores
from models.errors import DataError
from models.preprocess import InputSpec, picture_to_input
from tests.training.loading.shards.prepared import write_mixed
from tests.training.small import batches_of, command, prepare_flowers
from training.dataset.manifest import Manifest
from training.fit.pictures import Pictures
from training.loading.augment import Normalizer
from training.loading.data import (
    PictureDataset,
    still_loader,
    training_loader,
)
from training.loading.negatives import RunInput
from training.loading.sampler import SampleIndex
from training.loading.shards import Pack, pack
from training.loading.storage import PictureStore
from training.network_input import input_spec
from training.recipe import AugmentRecipe


def batches(data, workers, *flags):
    return batches_of(data, "--workers", workers, *flags, epoch=1, first_picture=8, side_px=40)


def equal(first, second):
    return len(first) == len(second) and all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_training_batches_are_uint8_and_channels_last_and_the_same_from_two_processes(data):
    alone, other = batches(data, 0), batches(data, 2)
    assert equal(alone, other)
    for pixels, labels in (alone[0], other[0]):
        assert (pixels.shape, pixels.dtype, labels.dtype) == ((4, 3, 40, 40), torch.uint8, torch.int64)
        assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert not equal(alone, batches(data, 0, "--seed", 1))


def test_more_loader_processes_than_cores_need_no_warning_of_pytorch(data, tmp_path):
    recipe = command(data, tmp_path / "run", "--workers", len(os.sched_getaffinity(0)) + 1).recipe
    training_loader(Manifest(data), RunInput.of(recipe), pin=False)  # pytest turns a warning into an error


def test_a_batch_is_read_in_one_round(data):
    class CountingStore(PictureStore):
        asked = []  # noqa: RUF012

        def read_many(self, rows):
            self.asked.append(list(rows))
            return super().read_many(rows)

    store = CountingStore(Manifest(data))
    rows = store.manifest.rows_of("train")[:5].tolist()
    spec = InputSpec(32, 32, 32)
    training = PictureDataset(store, AugmentRecipe(), spec, seed=0)
    together = training.__getitems__([SampleIndex(0, row, 32) for row in rows])
    evaluated = PictureDataset(store, None, spec, seed=0).__getitems__([SampleIndex(0, row, 0) for row in rows])
    assert store.asked == [rows, rows]
    assert equal(together, [training.__getitems__([SampleIndex(0, row, 32)])[0] for row in rows])
    assert [label for _, label in evaluated] == [label for _, label in together]


def test_shards_give_the_pictures_of_plain_files(tmp_path, monkeypatch):
    monkeypatch.setattr("training.loading.augment.FLIPPED", 0.0)
    monkeypatch.setattr("training.loading.augment.CROP_RATIO_MAX", 1.0)
    plain = Manifest(write_mixed(tmp_path / "plain", num_train=8))
    pack(Pack(data=plain.folder, out=tmp_path / "packed", short_side_px=512, workers=1))  # nothing is that large
    packed = Manifest(tmp_path / "packed")
    names = plain.table["picture_id"].to_pylist()
    row_of = {name: row for row, name in enumerate(packed.table["picture_id"].to_pylist())}
    spec = InputSpec(32, 32, 32)
    unchanged = AugmentRecipe(crop_scale_min=1.0, randaugment_magnitude=0)
    for row, name in enumerate(names):
        pairs = []
        for manifest, at in ((plain, row), (packed, row_of[name])):
            store = PictureStore(manifest)
            drawn = PictureDataset(store, unchanged, spec, seed=0).__getitems__([SampleIndex(0, at, 48)])
            pairs.append(drawn + PictureDataset(store, None, spec, seed=0).__getitems__([SampleIndex(0, at, 0)]))
        assert equal(*pairs)


def test_training_labels_are_those_of_the_pictures(data, tmp_path):
    manifest = Manifest(data)
    loader, sampler = training_loader(manifest, RunInput.of(command(data, tmp_path / "run").recipe), pin=False)
    sampler.side_px = 32
    samples = [sample for batch in sampler for sample in batch]
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == [int(manifest.labels[sample.row]) for sample in samples]
    for sample, label in zip(samples, labels, strict=True):
        taxon = manifest.taxonomy.taxa[manifest.taxonomy.taxon_of_output[label]]
        assert taxon.scientific_name in manifest.path(sample.row).parent.name
    repeats = loader.dataset.__getitems__([sample, sample._replace(repeat=1)])  # each is augmented in its own way
    assert not torch.equal(repeats[0][0], repeats[1][0])


def test_the_error_of_a_deleted_or_damaged_picture_is_one_sentence_that_names_it(tmp_path):
    manifest = Manifest(prepare_flowers(tmp_path, per_class=8))
    lost, damaged = (manifest.path(int(manifest.rows_of(split)[0])) for split in ("train", "validation"))
    lost.unlink()
    message = None
    try:  # pytest.raises would keep the loader's processes alive until the next collection of garbage, and that waits
        batches_of(tmp_path / "data", "--workers", 1)
    except DataError as error:
        message = str(error)
    assert str(lost) in message
    assert message.endswith("restore the file or run training/prepare.py again.")
    assert "\n" not in message
    shutil.copy(__file__, damaged)
    loader = still_loader(manifest, manifest.rows_of("validation"), InputSpec(32, 32, 32), 0)
    with pytest.raises(DataError, match=str(damaged.name)):
        list(loader)


def test_still_pictures_are_those_of_the_service_before_they_are_normalized(manifest):
    spec = InputSpec(height=40, width=40, train_px=32, crop_fraction=0.9)
    rows = manifest.rows_of("validation")[::-1].copy()
    loader = still_loader(manifest, rows, spec, 2)
    assert loader.num_workers == 0  # one batch
    ((pixels, labels),) = loader
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    inputs = Normalizer(spec, torch.device("cpu"))(pixels)
    for row, found, label in zip(rows, inputs, labels, strict=True):
        served, _ = picture_to_input(manifest.path(int(row)).read_bytes(), spec)
        torch.testing.assert_close(found, torch.from_numpy(served), rtol=0, atol=1e-6)
        assert label == manifest.labels[row]
    (batch,) = Pictures(manifest, rows, spec, "flowers").pixels([])
    assert np.array_equal(batch[-1], served)


def test_too_little_shared_memory_is_an_error_before_the_first_step(data, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: shutil._ntuple_diskusage(64e6, 0, 64e6))
    recipe = command(
        data, tmp_path / "run", "--workers", 8, "--batch-size", 16, "--picture-px", 380, "--serve-px", 64
    ).recipe
    with pytest.raises(DataError, match=r"64 MB are free .*222 MB for 4 batches of each of 8 processes.*--shm-size"):
        training_loader(Manifest(data), RunInput.of(recipe), pin=False)
    validated = command(data, tmp_path / "run", "--workers", 2, "--serve-px", 512).recipe
    with pytest.raises(DataError, match="expected 201 MB"):
        training_loader(Manifest(data), RunInput.of(validated), pin=False)
    few = command(
        data, tmp_path / "run", "--workers", 2, "--batch-size", 16, "--picture-px", 380, "--serve-px", 64
    ).recipe
    training_loader(Manifest(data), RunInput.of(few), pin=False)


def test_ranks_of_one_machine_share_its_cores(data, tmp_path, monkeypatch):
    recipe = command(data, tmp_path / "run", "--workers", 100).recipe
    assert training_loader(Manifest(data), RunInput.of(recipe), pin=False)[0].num_workers == 100
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert training_loader(Manifest(data), RunInput.of(recipe), pin=False)[0].num_workers == max(cores() // 2, 1)


def test_the_recipe_decides_the_input_of_the_service(data, tmp_path):
    flags = ("--picture-px", 64, "--serve-px", 96, "--crop-fraction", 0.9)
    spec = input_spec(command(data, tmp_path / "run", *flags).recipe)
    assert spec == InputSpec(height=96, width=96, train_px=64, crop_fraction=0.9)
