"""What all tests share."""

import atexit
import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.make import PHOTOS
from training.processes import clean_context

# What the test files import stays: to look through it for garbage again and again took a third of their import.
gc.disable()

# Nothing above imports NumPy, whose threads wait in a loop: with two on a busy core, a small fit took 18 times the
# processor time. Each test process and what it starts have one core.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# No property is about time, and a busy machine takes long to draw and to run an example.
settings.register_profile(
    "tests", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# Looks for examples that no run has tried yet: `make test-all`.
settings.register_profile("random", settings.get_profile("tests"), derandomize=False)
settings.load_profile("tests")

# Only the first start of the server imports anything. These are what the worker processes of the programs need; without
# them each worker would import them itself, and a preparation would start the server without torch.
_OF_WORKERS = (
    "training.loading.data",
    "training.loading.shards.packing",
    "training.dataset.audit.examine",
    "scipy.fft",
)


def pytest_collection_modifyitems(items):
    """The files of tests/models are short. At the end they keep both processes busy; a long one leaves one idle."""
    items.sort(key=lambda item: item.path.parent.name == "models")


def pytest_runtest_setup(item):
    """A test for which this machine lacks something is skipped."""
    if item.get_closest_marker("photos") and not PHOTOS.is_dir():
        pytest.skip(f"no photographs at {PHOTOS}; set BOTANIFY_PHOTOS")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU")


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # otherwise triton lists at the end of Python what it takes for leaks


@pytest.fixture(autouse=True, scope="session")
def helpers_know_torch(request):
    """Before any test starts the server without torch. The start takes as long as fifty tests of another folder."""
    if any("training" in item.path.parts for item in request.session.items):
        clean_context(*_OF_WORKERS)


@pytest.fixture
def handlers():
    """After a program that ran in this process, signals are handled as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def sealed(tmp_path_factory):
    """Seals a tiny bundle, with tables, places, examples or other weights if they are given; returns its folder."""
    from tests.serving.tiny import seal_tiny_bundle

    def seal(*version_and_weights, **fields):
        scratch = tmp_path_factory.mktemp("sealed")
        return seal_tiny_bundle(scratch / "tiny", scratch, *version_and_weights, **fields).folder

    return seal
