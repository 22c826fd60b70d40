"""What tests of folder runs share."""

from functools import partial

import pytest

from tests.serving.folder import photograph_folder
from tests.serving.folder.photograph_folder import COLORS, draw_photographs, write_list


@pytest.fixture
def photographs(tmp_path):
    return draw_photographs(tmp_path / "photographs", COLORS)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def listed(tmp_path):
    """Writes a list of these rows; returns its path."""
    return partial(write_list, tmp_path / "list.csv")


@pytest.fixture
def identify(photographs, out, bundle_folder):
    """Runs the program in this process, on these photographs if a test names no others; returns its exit code."""

    def run(photographs=photographs, out=out, bundle=bundle_folder, **flags):
        return photograph_folder.identify(photographs, out, bundle, **flags)

    return run
