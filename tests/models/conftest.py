"""Files that several tests read and none changes."""

import pytest

from tests.models.tiny import NETWORK, seal_tiny, write_network


@pytest.fixture(scope="session")
def network_file(tmp_path_factory):
    """A sound network file."""
    return write_network(tmp_path_factory.mktemp("network") / NETWORK)


@pytest.fixture
def sealed(tmp_path, network_file):
    """A sound bundle of the test's own, to be damaged as it likes."""
    return seal_tiny(tmp_path / "tiny", network_file).folder
