"""Pictures that are prepared, and packed, once for all tests of shards."""

import pytest

from tests.training.loading.shards.prepared import OPTIONS, write_mixed
from training.loading.shards import Pack, pack


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    return write_mixed(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="session")
def packed(prepared, tmp_path_factory):
    """Never to be written to."""
    out = tmp_path_factory.mktemp("packed") / "data"
    pack(Pack(data=prepared, out=out, **OPTIONS))
    return out
