"""Plants become rows: parts come when they are complete, and a failure of the machine is no failure of a photograph."""

import asyncio
from itertools import chain

import pytest
from msgspec.structs import replace

from models.errors import InputError
from serving.engine.loaded_bundle import open_bundle
from serving.errors import NotReady
from serving.folder import Outcome, worker
from serving.folder.command import IdentifyFolder
from serving.folder.output import OutputFolder
from serving.folder.photographs import LocalFolder
from serving.folder.plants import Plant
from serving.folder.results import PartFiles, bundle_name
from serving.folder.rows import columns
from serving.folder.worker import Worker, open_worker
from serving.metrics import Metrics
from serving.settings import Settings
from tests.serving.folder.photograph_folder import draw_photographs, rows_of
from tests.serving.tiny import BLUE, GREEN, RED, InProcessDecoder, jpeg

COLORS = {"a.jpg": RED, "b.jpg": GREEN, "c.jpg": BLUE}


@pytest.fixture
def photographs(tmp_path):
    return draw_photographs(tmp_path / "photographs", COLORS)


class SlowForRed(InProcessDecoder):
    """Holds red pictures until they are let go."""

    def __init__(self):
        self.free = asyncio.Event()

    async def decode(self, data, spec, time=None):
        if data == jpeg(RED):
            await self.free.wait()
        return await super().decode(data, spec, time)


class Broken(InProcessDecoder):
    """Does not work at first."""

    def __init__(self, num_failures, color):
        self.num_failures, self.color = num_failures, color

    async def decode(self, data, spec, time=None):
        if data == jpeg(self.color) and self.num_failures:
            self.num_failures -= 1
            raise NotReady("the network does not run")
        return await super().decode(data, spec, time)


@pytest.fixture
def work(photographs, bundle_folder, tmp_path):
    """A command, and where its rows go."""
    command = IdentifyFolder(photographs=str(photographs), out=str(tmp_path / "out"), bundle=bundle_folder)
    return command, PartFiles(OutputFolder(tmp_path / "out"), columns(command.k))


def test_a_slow_plant_holds_up_its_own_part_only(work, photographs, bundle_folder):
    command, files = work
    decoder = SlowForRed()
    rows = []
    written = []
    parts = [{each.path: Plant("", (each,))} for each in LocalFolder(photographs).find()]
    loaded = open_bundle(Settings(bundle=bundle_folder), Metrics())

    def on_part():
        written.append({*chain.from_iterable(files.held().values())})
        if len(written) == 2:
            decoder.free.set()

    async def write():
        await loaded.warm_up(InProcessDecoder())
        async with asyncio.timeout(100):
            await Worker(command, files, loaded, decoder).write(parts, rows.append, on_part)

    asyncio.run(write())
    assert written[1:] == [{"b.jpg", "c.jpg"}, COLORS.keys()]
    assert len(rows) == 3
    loaded.scheduler.close()


def test_a_bundle_that_differs_from_that_of_the_run_is_refused(work, bundle_folder):
    command, files = work
    here = bundle_name(bundle_folder)

    async def start(expected):
        async with open_worker(command, expected, files, 1, InProcessDecoder()):
            pass

    asyncio.run(start(here))
    for other in (replace(here, sha256="0" * 64), replace(here, version="9.9.9"), replace(here, name="other")):
        with pytest.raises(InputError, match=rf"got {here}; expected {other}, with which the run started"):
            asyncio.run(start(other))


def test_a_photograph_is_tried_again_after_a_pause(identify, out, monkeypatch):
    monkeypatch.setattr(worker, "_PAUSES_S", (0.0, 0.0))
    assert identify(decoder=Broken(2, RED)) == Outcome.COMPLETE
    assert {row["status"] for row in rows_of(out).values()} == {"ok"}


def test_a_failure_of_the_machine_ends_the_run_and_the_same_command_continues(identify, out, monkeypatch):
    monkeypatch.setattr(worker, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(NotReady, match="the network does not run"):
        identify(part_rows=1, decoder=Broken(1000, BLUE))
    assert identify(part_rows=1) == Outcome.COMPLETE
    assert {path: row["status"] for path, row in rows_of(out).items()} == dict.fromkeys(COLORS, "ok")
