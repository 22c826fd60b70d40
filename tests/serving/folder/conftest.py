"""What tests of folder runs share."""

import pytest

from tests.serving.folder.photograph_folder import COLORS, draw_photographs


@pytest.fixture
def photographs(tmp_path):
    return draw_photographs(tmp_path / "photographs", COLORS)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"
