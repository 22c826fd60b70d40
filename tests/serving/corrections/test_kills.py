"""Corrections of many clients at once while the service is killed: every one that was accepted is there once."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx2
import psutil
import pytest

from serving.corrections.store import Store
from tests.serving.program import run, service
from tests.serving.tiny import jpeg

POSTGRES = Path(shutil.which("pg_ctl") or next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))), ""))
FLAGS = ("--num-threads", "1", "--num-runs", "1", "--max-wait-s", "60", "--client-share", "1")


@contextmanager
def postgresql():
    """A database server of its own, on a socket in its folder."""
    if not POSTGRES.is_file():
        pytest.skip("needs PostgreSQL: apt install postgresql")
    user = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups") if os.getuid() == 0 else ()
    folder = Path(tempfile.mkdtemp())  # pytest's own may be entered by its user alone
    folder.chmod(0o777)
    data = folder / "data"

    def call(*command):
        subprocess.run([*user, *map(str, command)], check=True, cwd=folder, stdout=subprocess.DEVNULL)

    call(POSTGRES.with_name("initdb"), "-D", data, "-A", "trust", "-U", "botanify")
    call(POSTGRES, "-D", data, "-w", "-l", folder / "log", "-o", f"-k {folder} -c listen_addresses=''", "start")
    try:
        yield f"postgresql+psycopg://botanify@/postgres?host={folder}"
    finally:
        call(POSTGRES, "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


class Clients:
    """Clients that identify and correct until there are enough; they survive the death of the service."""

    def __init__(self, wanted, pictures):
        self.accepted, self._pictures, self._wanted = set(), pictures, wanted
        self._numbers, self._lock = count(), threading.Lock()
        self.url = ""

    def work(self):
        with httpx2.Client(timeout=30, verify=False) as client:  # to read the certificates takes 20 ms
            while len(self.accepted) < self._wanted:
                number = next(self._numbers)
                try:
                    picture = self._pictures[number % len(self._pictures)]
                    asked = client.post(f"{self.url}/identify", files={"image": picture})
                    where = f"{self.url}/identify/{asked.json()['request_id']}/correction"
                    files = {"image": picture} if number % 4 == 0 else None
                    answer = client.post(where, params={"other": f"plant {number}"}, files=files)
                    if answer.status_code == httpx2.codes.OK:
                        with self._lock:
                            self.accepted.add((answer.json()["correction_id"], f"plant {number}"))
                except (httpx2.HTTPError, KeyError, json.JSONDecodeError):
                    time.sleep(0.1)  # or they take the time of the service that starts


def correct_while_it_is_killed(bundle, folder, wanted, kills, *flags, num_clients=32):
    """Returns what the clients were told is kept."""
    clients = Clients(wanted, [jpeg((200, red, 30), size=(40, 40)) for red in range(40)])
    with ThreadPoolExecutor(num_clients) as pool:
        tasks = []
        for life in range(kills + 1):
            with service(bundle, "--corrections", str(folder), *FLAGS, *flags) as running:
                clients.url = running.url
                tasks = tasks or [pool.submit(clients.work) for _ in range(num_clients)]
                while len(clients.accepted) < wanted * (life + 1) // (kills + 1):
                    time.sleep(0.02)
                if life < kills:
                    running.process.kill()
        for task in tasks:
            task.result()
    return clients.accepted


def assert_each_is_there_once(accepted, store):
    kept = list(store.all())
    assert len({each.correction_id for each in kept}) == len(kept)
    assert accepted <= {(each.correction_id, each.name) for each in kept}
    for each in kept:
        assert all(store.path(sha256).is_file() for sha256 in each.pictures)


@pytest.mark.parametrize(
    ("wanted", "kills", "num_clients"),
    [(60, 1, 8), pytest.param(10_000, 5, 32, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_corrections_survive_kills(bundle_folder, tmp_path, wanted, kills, num_clients):
    kept = tmp_path / "kept"
    accepted = correct_while_it_is_killed(bundle_folder, kept, wanted, kills, num_clients=num_clients)
    with Store(kept) as store:
        assert_each_is_there_once(accepted, store)


@pytest.mark.slow
def test_postgresql_keeps_the_same(bundle_folder, tmp_path):
    with postgresql() as address:
        flags = ("--corrections-database", address)
        accepted = correct_while_it_is_killed(bundle_folder, tmp_path / "kept", 400, 2, *flags)
        with Store(tmp_path / "kept", address) as store:
            assert_each_is_there_once(accepted, store)
        listed = run(
            "list", tmp_path / "kept", "--database", address, program=("-m", "serving.corrections")
        ).stdout.splitlines()
        assert len(listed) >= len(accepted)
        assert not (tmp_path / "kept" / "corrections.sqlite").exists()


@contextmanager
def frozen(folder):
    """No process of the database server in the folder runs meanwhile, as after the loss of its network."""
    server = psutil.Process(int((folder / "data" / "postmaster.pid").read_text().split()[0]))
    processes = [server, *server.children()]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.slow
@pytest.mark.parametrize("has_stored", [True, False])  # a connection of the pool, or a new one
def test_a_frozen_postgresql_neither_holds_corrections_nor_the_stop(bundle_folder, tmp_path, has_stored):
    picture = jpeg()
    with postgresql() as address:
        flags = ("--corrections", str(tmp_path / "kept"), "--corrections-database", address)
        with service(bundle_folder, *FLAGS, *flags) as running, running.client() as client:

            def identify():
                return client.post("/identify", files={"image": picture}).json()["request_id"]

            def correct(request_id):
                return client.post(f"/identify/{request_id}/correction", params={"other": "a rose"})

            ids = [identify() for _ in range(3)]
            if has_stored:
                assert correct(ids[0]).status_code == httpx2.codes.OK
            with frozen(Path(httpx2.URL(address).params["host"])):
                for request_id in ids[1:]:
                    assert correct(request_id).status_code == httpx2.codes.SERVICE_UNAVAILABLE
                assert identify()
                stopping = time.monotonic()
                assert running.stop() == 0
                stopped = time.monotonic()
        assert stopped - stopping < 25  # as docs/operate.md says
