"""A folder of corrections, and a service that keeps them there."""

import pytest

from tests.serving.corrections.kept import running
from tests.serving.program import PATIENCE_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A busy machine stores as late as it likes, also beside the purge at the start; tests of limits have their own."""
    monkeypatch.setattr("serving.corrections.service._DEADLINE_S", PATIENCE_S)
    monkeypatch.setattr("serving.corrections.store._LOCK_S", PATIENCE_S)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "corrections"


@pytest.fixture
def client(settings, folder):
    with running(settings, folder) as client:
        yield client
