"""The memory of a loader process with the largest data that this project is meant for."""

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
from torch.utils.data import TensorDataset

from tests.training.small import draw, make_taxonomy
from training.dataset.manifest import Manifest, SourceNote, write_manifest
from training.loading.data import PictureDataset, PictureLoader, collate_channels_last
from training.loading.sampler import EpochBatches
from training.loading.storage import PictureStore
from training.network_input import input_spec
from training.processes import clean_context
from training.recipe import Recipe

NUM_ROWS, NUM_OUTPUTS, NUM_FILES = 1_600_000, 5_337, 8
MOST_BYTES = 50_000_000


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """All rows name the same few files; the other columns have realistic lengths and numbers of distinct values."""
    folder = tmp_path_factory.mktemp("large")
    for number in range(NUM_FILES):
        draw("crimson", "ellipse", number, size=(666, 500)).save(folder / f"{number}.jpg")
    taxonomy = make_taxonomy(NUM_OUTPUTS)
    numbers = np.arange(NUM_ROWS)

    def repeated(values):
        return pa.DictionaryArray.from_arrays(pa.array(numbers % len(values), pa.int32()), pa.array(values))

    columns = {
        "picture_id": pa.array([f"drawn:train/{number:036x}.jpg" for number in numbers.tolist()]),
        "source": repeated(["drawn"]),
        "path": pa.array([f"{number}.jpg" for number in (numbers % NUM_FILES).tolist()]),
        "shard": repeated([""]),
        "offset": np.zeros(NUM_ROWS, np.int64),
        "length": np.full(NUM_ROWS, 50_000),
        "label": repeated(list(taxonomy.output_keys)),
        "split": repeated(["train"] * 9 + ["test"]),
        "group": pa.array([f"plant {number}" for number in numbers.tolist()]),
        "licence": repeated(["CC0", "CC-BY-4.0", ""]),
        "author": repeated([f"author {number}" for number in range(50_000)]),
        "taken_on": pa.nulls(NUM_ROWS, pa.date32()),
        "latitude": numbers.astype(np.float32),
        "longitude": numbers.astype(np.float32),
        "sha256": pa.array([f"{number:064x}" for number in numbers.tolist()]),
        "width": np.full(NUM_ROWS, 666, np.int32),
        "height": np.full(NUM_ROWS, 500, np.int32),
    }
    columns["split"] = columns["split"].cast(pa.string()).dictionary_encode()
    write_manifest(folder, columns, taxonomy, {"drawn": SourceNote(str(folder))})
    del columns
    return Manifest(folder)


def private_bytes(pictures, batches):
    """The private memory of a loader process after three batches.

    Pages of the mapped manifest do not count: they are in the page cache, which all processes share and which the
    kernel frees when memory is needed.
    """
    loader = PictureLoader(
        pictures,
        batch_sampler=batches,
        collate_fn=collate_channels_last,  # brings all modules with it
        num_workers=1,
        multiprocessing_context=clean_context("training.loading.data"),
    )
    before = set(psutil.Process().children(recursive=True))
    found = iter(loader)
    for _ in range(3):
        next(found)
    (worker,) = (
        process
        for process in set(psutil.Process().children(recursive=True)) - before
        if "resource_tracker" not in " ".join(process.cmdline())
    )
    return sum(area.private_dirty for area in worker.memory_maps())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_loader_process_of_1_6_million_pictures_takes_less_than_50_mb(manifest):
    recipe = Recipe()
    batches = EpochBatches(manifest.rows_of("train"), 32, seed=0)
    batches.side_px = 380
    pictures = PictureDataset(PictureStore(manifest), recipe.augment, input_spec(recipe), seed=0)
    bare = private_bytes(TensorDataset(torch.zeros(1, 3, 8, 8), torch.zeros(1)), [[0]] * 100)
    grown = private_bytes(pictures, batches) - bare
    print(f"{bare / 1e6:.1f} MB bare, {grown / 1e6:.1f} MB more")
    assert 0 < grown < MOST_BYTES
