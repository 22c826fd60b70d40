"""What all tests share."""

import multiprocessing
from multiprocessing import forkserver

import pytest

from training.processes import clean_context


@pytest.fixture(autouse=True, scope="session")
def helpers_know_torch():
    """Only the first start of the server imports anything, and a preparation would start it without torch."""
    clean_context("training.loading.data")
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver.ensure_running()
