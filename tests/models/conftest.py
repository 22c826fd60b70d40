"""Files that several tests read but do not change."""

import pytest

from tests.models.tiny import NETWORK, seal_tiny, write_network


@pytest.fixture(scope="session")
def network_file(tmp_path_factory):
    """A valid network file."""
    return write_network(tmp_path_factory.mktemp("network") / NETWORK)


@pytest.fixture
def sealed(tmp_path, network_file):
    """A valid bundle that a test may damage."""
    return seal_tiny(tmp_path / "tiny", network_file).folder
