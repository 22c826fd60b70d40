"""Decoding children that several tests share: a start takes half a second."""

import pytest

from tests.serving.decoding.running_pool import Running


@pytest.fixture(scope="module")
def running():
    """Two children with generous limits; a test that harms one leaves it to be replaced."""
    with Running(2) as running:
        yield running


@pytest.fixture(scope="module")
def one():
    """A single child, so that a test knows which one decodes."""
    with Running(1) as running:
        yield running


@pytest.fixture
def pid(one):
    one.wait_for_all(1)
    (pid,) = one.pids()
    return pid
