"""The tiny network of the shared fixtures, and its pictures."""

import pytest

from training.fit.pictures import Pictures, pictures_of


@pytest.fixture(scope="session")
def single(bundle):
    """Its fp32 file, whose weights are stored in half precision."""
    return bundle.folder / bundle.network("fp32").file


@pytest.fixture(scope="session")
def learned(bundle, manifest) -> Pictures:
    """The 30 pictures that it was trained on."""
    return pictures_of(manifest, "train", bundle.record.input, workers=0)
