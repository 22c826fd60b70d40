"""The tiny network of the shared fixtures, and its pictures."""

import pytest

from training.bundling.precisions.graph import fold_constants, pool_means
from training.bundling.precisions.pictures import Pictures, pictures_of
from training.bundling.precisions.ranges import picture_extremes, write_ranges


@pytest.fixture(scope="session")
def single(bundle):
    """Its fp32 file, whose weights are stored in half precision."""
    return bundle.folder / bundle.network("fp32").file


@pytest.fixture(scope="session")
def learned(bundle, manifest) -> Pictures:
    """The 30 pictures that it was trained on."""
    return pictures_of(manifest, "train", bundle.record.input, workers=0)


@pytest.fixture(scope="session")
def prepared(single, tmp_path_factory):
    """The network after `fold_constants` and `pool_means`."""
    path = tmp_path_factory.mktemp("prepared") / "prepared.onnx"
    fold_constants(single, path)
    pool_means(path)
    return path


@pytest.fixture(scope="session")
def extremes(prepared, learned):
    return picture_extremes(prepared, learned.pixels())


@pytest.fixture(scope="session")
def ranges(extremes, tmp_path_factory):
    """Ranges that hold the values of all pictures."""
    path = tmp_path_factory.mktemp("ranges") / "ranges.json"
    write_ranges(extremes, 1.0, path)
    return path
