"""Decoder pools that tests share, because a start takes half a second."""

import pytest

from tests.serving.decoding.running_pool import RunningPool


@pytest.fixture(scope="module")
def running():
    """Two children with generous limits; a child that a test kills is replaced."""
    with RunningPool(2) as running:
        yield running


@pytest.fixture(scope="module")
def one():
    """A single child, so that a test knows which one decodes."""
    with RunningPool(1) as running:
        yield running


@pytest.fixture
def pid(one):
    one.wait_for_all(1)
    (pid,) = one.pids()
    return pid
