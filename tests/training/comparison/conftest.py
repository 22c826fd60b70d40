import pytest

from tests.training.comparison.color_bundles import prepare_flowers


@pytest.fixture(scope="session")
def flowers(tmp_path_factory):
    """Prepared data of 60 drawn flowers, of which 30 are for the test."""
    return prepare_flowers(tmp_path_factory.mktemp("flowers"))
