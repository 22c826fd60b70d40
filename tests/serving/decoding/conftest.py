"""Decoding children that several tests share: a start takes half a second."""

import pytest

from tests.serving.decoding.running import Running


@pytest.fixture(scope="module")
def running():
    """Two children with generous limits; a test that harms one leaves it to be replaced."""
    with Running(2) as running:
        yield running
