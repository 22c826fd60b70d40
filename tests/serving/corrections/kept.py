"""Corrections that tests make, over HTTP or in the store, and what a store has kept."""

import sqlite3
from contextlib import closing, contextmanager

from msgspec.structs import asdict, replace

from serving.corrections.record import Correction
from serving.corrections.store import DATABASE_FILE, Store
from tests.serving.conftest import ready_service
from tests.serving.tiny import BLUE, GREEN, jpeg

ROSE, DAISY, CROCUS = jpeg(), jpeg(GREEN), jpeg(BLUE)


def running(settings, folder, **more):
    """A client of a service that keeps corrections in the folder."""
    return ready_service(**asdict(replace(settings, corrections=folder, **more)))


def ask(client, *pictures, **more):
    """Asks about the pictures, or about a rose; returns the id of the answer."""
    files = [("image", each) for each in pictures or (ROSE,)]
    return client.post("/identify", files=files, **more).json()["request_id"]


def correct(client, *pictures, of=None, headers=None, **fields):
    """Corrects an answer, or a new one about a rose."""
    files = [("image", each) for each in pictures]
    address = f"/identify/{of or ask(client)}/correction"
    return client.post(address, files=files or None, params=fields, headers=headers)


def correction(number, name="Rosa rugosa", **more):
    fields = {
        "correction_id": f"{number:032x}",
        "created": f"2026-10-{number + 1:02}T12:00:00+00:00",
        "person": "",
        "model": "tiny 0.0.1",
        "label_hash": "",
        "verdict_rank": "species",
        "predicted": "rosa-canina",
        "score": 0.9,
        "predictions": "[]",
        "taxon_id": name.lower().replace(" ", "-"),
        "name": name,
        "certain": True,
    }
    return Correction(**(fields | more))


def kept(folder):
    with Store(folder) as store:
        return list(store.all())


def files(folder):
    """The names of the pictures that are kept."""
    return {path.name for path in folder.glob("pictures/*/*")}


def database(folder):
    """A connection of another process to the database."""
    return closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None))


@contextmanager
def locked_database(folder):
    with database(folder) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")
