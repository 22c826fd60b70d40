"""The store of corrections: on the disk before it is said, shared by services, and no answer waits when it fails."""

import asyncio
import hashlib
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, event, make_url
from structlog.testing import capture_logs

from models.errors import InputError
from serving.app import create_app
from serving.corrections import store as store_module
from serving.corrections.service import CorrectionService
from serving.corrections.store import Store, _open
from serving.errors import StoreUnavailable
from tests.make import from_table
from tests.serving.corrections.kept import (
    DAISY,
    ROSE,
    ask,
    correct,
    correction,
    database,
    files,
    kept,
    locked_database,
    running,
)
from tests.serving.tiny import InProcessDecoder, assert_problem
from tests.waiting import wait_until


def test_a_picture_that_another_service_stores_while_its_last_correction_goes_stays(folder, monkeypatch):
    lock = store_module._lock
    with Store(folder) as store, Store(folder) as other:
        store.put(correction(0), [ROSE])

        def lock_late(connection, statement):
            other.put(correction(1), [ROSE])
            lock(connection, statement)

        monkeypatch.setattr(store_module, "_lock", lock_late)
        assert store.delete([correction(0).correction_id]) == 1
    (found,) = kept(folder)
    assert files(folder) == set(found.pictures) != set()


@pytest.fixture
def impatient(monkeypatch):
    """Who waits for a lock does so for a moment."""
    monkeypatch.setattr("serving.corrections.store._LOCK_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_a_locked_database_and_a_broken_disk_cost_no_answer(client, folder, monkeypatch):
    answer = ask(client)
    with locked_database(folder):
        response = correct(client, of=answer, taxon="crocus")
        assert_problem(response, 503, "store_unavailable")
        assert response.headers["retry-after"]
        assert_problem(client.delete(f"/corrections/{0:032x}"), 503, "store_unavailable")
        assert ask(client)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert_problem(correct(client, ROSE, of=answer, taxon="crocus"), 503, "store_unavailable")
        assert ask(client)
    assert (files(folder), kept(folder)) == (set(), [])
    assert correct(client, ROSE, of=answer, taxon="crocus").status_code == 200


@pytest.mark.usefixtures("impatient")
def test_who_only_reads_does_not_wait_for_a_writer(folder):
    Store(folder).close()
    with locked_database(folder):
        assert kept(folder) == []


def test_expired_corrections_go_and_so_do_files_without_a_row(folder):
    now = datetime.now(UTC)
    with Store(folder) as store:
        for number, (days, picture) in enumerate({364: ROSE, 366: DAISY}.items()):
            created = (now - timedelta(days=days)).isoformat(timespec="seconds")
            store.put(correction(number, created=created), [picture])
        lost = {61: store.path("ab" * 32), 59: store.path("cd" * 32)}
        for minutes, path in lost.items():
            path.parent.mkdir()
            path.touch()
            os.utime(path, 2 * ((now - timedelta(minutes=minutes)).timestamp(),))
        assert store.purge(365) == 1
        assert [each.correction_id for each in store.all()] == [f"{0:032x}"]
        assert [path.exists() for path in lost.values()] == [False, True]
        assert (store.path(hashlib.sha256(ROSE).hexdigest()).exists(), len(files(folder))) == (True, 2)


@from_table
def test_what_a_purge_on_a_clock_that_goes_wrong_leaves(folder, monkeypatch, fact, steps):
    """Steps: ["keep", number, days ago or a time], or ["purge", days that the clock is fast, what is left]."""

    def after(days):
        return datetime.now(UTC) + timedelta(days=days)

    for step, number, what in steps:
        with Store(folder) as store, suppress(InputError):
            if step == "keep":
                created = what if isinstance(what, str) else after(-what).isoformat(timespec="seconds")
                store.put(correction(number, created=created), [])
            else:
                with monkeypatch.context() as patch:
                    patch.setattr(store_module, "datetime", SimpleNamespace(now=lambda _, days=number: after(days)))
                    store.purge(365)
        if step == "purge":
            assert [int(each.correction_id, 16) for each in kept(folder)] == [*what]


@contextmanager
def listening(name, listener):
    event.listen(Engine, name, listener)
    yield
    event.remove(Engine, name, listener)


def test_a_purge_asks_for_many_pictures_at_once(folder):
    statements = []
    with Store(folder) as store:
        for number in range(40):
            store.put(correction(number, created=datetime.now(UTC).isoformat()), [bytes([number])])
        for path in folder.glob("pictures/*/*"):
            os.utime(path, (0, 0))
        with listening("before_cursor_execute", lambda *told: statements.append(told[2])):
            store.purge(365)
    assert len(files(folder)) == 40
    assert len(statements) < 10


def test_pictures_are_on_the_disk_before_their_row_is(folder, monkeypatch):
    done = []

    def fsync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    replace = Path.replace
    with Store(folder) as store:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
        with listening("commit", lambda _: done.append("commit")):
            store.put(correction(0), [ROSE])
    assert done[:4] == ["file", "replace", "folder", "commit"]


def test_a_commit_to_sqlite_is_on_the_disk(tmp_path):
    engine = _open(make_url(f"sqlite:///{tmp_path / 'x.sqlite'}"))
    with engine.connect() as connection:
        full = 2  # https://sqlite.org/pragma.html#pragma_synchronous
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
    engine.dispose()


def test_a_call_to_postgresql_ends_when_server_or_network_do_not_respond(monkeypatch):
    made = {}
    monkeypatch.setattr("serving.corrections.store._LOCK_S", 5)
    monkeypatch.setattr("serving.corrections.store.create_engine", lambda *_, **more: made.update(more))
    _open(make_url("postgresql+psycopg://botanify@nosuch/corrections"))
    limits = made["connect_args"]
    assert limits["options"] == "-c statement_timeout=5000"
    assert (limits["connect_timeout"], limits["tcp_user_timeout"], limits["keepalives_idle"]) == (5, 5000, 5)


def test_words_of_people_are_neither_logged_nor_answered_when_they_cannot_be_stored(client, folder):
    with database(folder) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON corrections BEGIN SELECT RAISE(ABORT, 'no'); END")
    with capture_logs() as logged:
        response = correct(client, other="a secret of ann")
    assert_problem(response, 503, "store_unavailable")
    assert [each for each in logged if each["event"] == "store_unavailable"]
    assert "secret" not in f"{logged} {response.text}"
    with Store(folder) as store, pytest.raises(StoreUnavailable) as caught:
        store.put(correction(0, "a secret of ann"), [])
    assert "secret" not in str(caught.value.__cause__)  # the log has its beginning


@pytest.fixture
def stuck(monkeypatch):
    """The store does not respond until it is told to."""
    put = Store.put
    found = SimpleNamespace(began=threading.Semaphore(0), response=threading.Event(), ended=[])

    def wait(*arguments):
        found.began.release()
        found.response.wait(60)
        put(*arguments)
        found.ended.append(arguments)

    monkeypatch.setattr(Store, "put", wait)
    yield found
    found.response.set()


def test_pictures_of_a_correction_count_as_held_until_they_are_stored_but_not_as_work(settings, folder, stuck):
    with running(settings, folder, max_held_bytes=2 * len(ROSE)) as client, ThreadPoolExecutor() as pool:
        first, second = ask(client), ask(client)
        waiting = pool.submit(correct, client, ROSE, of=first, taxon="crocus")
        stuck.began.acquire()
        (admitted,) = client.service.admission._admitted
        assert (admitted.has_begun, admitted.num_pictures_expected(admitted.arrived_at)) == (True, 0)
        assert_problem(correct(client, ROSE, of=second, taxon="crocus"), 503, "overloaded")
        stuck.response.set()
        assert waiting.result().status_code == 200


def test_a_database_that_does_not_respond_is_asked_once_and_holds_neither_answers_nor_the_stop(
    settings, folder, stuck, monkeypatch
):
    monkeypatch.setattr("serving.corrections.service._DEADLINE_S", 0.1)
    monkeypatch.setattr("serving.corrections.service._CLOSE_S", 0.1)
    with running(settings, folder) as client:
        answer = ask(client)
        unread = {"content": b"not a form", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}
        for response in (
            correct(client, of=answer, taxon="crocus"),
            correct(client, of=answer, taxon="crocus"),
            client.post(f"/identify/{answer}/correction", **unread),
        ):
            assert_problem(response, 503, "store_unavailable")
        assert ask(client)
        assert stuck.began.acquire(timeout=0)
        assert not stuck.began.acquire(timeout=0)
    assert stuck.ended == []


def test_corrections_are_stored_again_once_the_database_responds(settings, folder, stuck, monkeypatch):
    with running(settings, folder) as client, ThreadPoolExecutor() as pool:
        answer = ask(client)

        def correct_it():
            return correct(client, of=answer, taxon="crocus")

        with monkeypatch.context() as patch:
            patch.setattr("serving.corrections.service._DEADLINE_S", 0.1)
            assert_problem(correct_it(), 503, "store_unavailable")
        stuck.response.set()
        wait_until(lambda: correct_it().status_code == 200)
        stuck.response.clear()
        waiting = [pool.submit(correct_it) for _ in range(2)]
        both = "botanify_requests_admitted 2.0"
        wait_until(lambda: any(each.done() for each in waiting) or both in client.get("/metrics").text)
        stuck.response.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
    assert len(kept(folder)) == 1


def test_the_33rd_correction_that_waits_is_refused():
    response = threading.Event()
    store = SimpleNamespace(delete=lambda _: response.wait(60), close=lambda: None)

    async def act():
        correction_service = CorrectionService(store, 365)
        tasks = [asyncio.create_task(correction_service.delete(f"{number:032x}")) for number in range(34)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        response.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        correction_service.close()
        return outcomes

    *stored, refused = asyncio.run(act())
    assert stored == [None] * 33
    assert isinstance(refused, StoreUnavailable)


def test_what_is_too_old_is_looked_for_again_after_any_failure(monkeypatch):
    monkeypatch.setattr("serving.corrections.service._PURGE_EVERY_S", 0)
    outcomes, again = [RuntimeError, InputError("the newest would go, too")], threading.Event()

    def purge(_):
        if outcomes:
            raise outcomes.pop()
        again.set()
        return 0

    async def act():
        correction_service = CorrectionService(SimpleNamespace(purge=purge, close=lambda: None), 365)
        task = asyncio.create_task(correction_service.purge_forever())
        assert await asyncio.to_thread(again.wait, 60)
        task.cancel()
        correction_service.close()

    with capture_logs() as logged:
        asyncio.run(act())
    assert [each["error"] for each in logged] == ["the newest would go, too.", "RuntimeError"]


@pytest.mark.parametrize(("waits_s", "closed"), [(0.05, 0), (60, 1)])
def test_the_store_is_not_closed_under_a_writer(monkeypatch, waits_s, closed):
    monkeypatch.setattr("serving.corrections.service._CLOSE_S", waits_s)
    ends, began, closes = threading.Event(), threading.Event(), []

    def delete(_):
        began.set()
        ends.wait(60)

    async def act():
        correction_service = CorrectionService(SimpleNamespace(delete=delete, close=lambda: closes.append(1)), 365)
        task = asyncio.create_task(correction_service.delete("0" * 32))
        await asyncio.to_thread(began.wait, 60)
        if closed:
            ends.set()
        correction_service.close()
        task.cancel()

    asyncio.run(act())
    ends.set()
    assert len(closes) == closed


OF_ALEMBIC = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES ('0001');
CREATE TABLE corrections (
    correction_id VARCHAR(32) NOT NULL, created VARCHAR(32) NOT NULL, person VARCHAR(200) NOT NULL,
    model VARCHAR(200) NOT NULL, label_hash VARCHAR(64) NOT NULL, verdict_rank VARCHAR(20) NOT NULL,
    predicted VARCHAR(200) NOT NULL, score FLOAT NOT NULL, predictions TEXT NOT NULL, taxon_id VARCHAR(200),
    name VARCHAR(200) NOT NULL, certain BOOLEAN NOT NULL, reviewer VARCHAR(200) NOT NULL, accepted BOOLEAN,
    PRIMARY KEY (correction_id)
);
CREATE TABLE pictures (
    correction_id VARCHAR(32) NOT NULL, position INTEGER NOT NULL, sha256 VARCHAR(64) NOT NULL,
    num_bytes INTEGER NOT NULL, PRIMARY KEY (correction_id, position),
    FOREIGN KEY(correction_id) REFERENCES corrections (correction_id) ON DELETE CASCADE
);
"""


def test_a_store_that_alembic_made_opens_and_one_of_another_version_does_not(folder):
    folder.mkdir()
    with database(folder) as other:
        other.executescript(OF_ALEMBIC)
    with Store(folder) as store:
        store.put(correction(0), [ROSE])
    assert [each.name for each in kept(folder)] == ["Rosa rugosa"]
    with database(folder) as other:
        other.execute("UPDATE alembic_version SET version_num = '0002'")
    with pytest.raises(InputError, match=r"another version \(got '0002'; expected 0001\): open it with the botanify"):
        Store(folder)


def test_services_that_open_a_new_folder_at_the_same_moment_all_start(folder, monkeypatch):
    lock, waited = store_module._lock, []

    def lock_late(connection, statement):
        monkeypatch.setattr(store_module, "_lock", lock)
        Store(folder).close()  # another service has made the tables meanwhile
        lock(connection, statement)
        waited.append(statement)

    monkeypatch.setattr(store_module, "_lock", lock_late)
    Store(folder).close()
    assert (kept(folder), len(waited)) == ([], 1)


@pytest.mark.parametrize(
    ("place", "url"), [("file", ""), ("x", "oracle:x"), ("x", "sqlite:///")], ids=["file", "dialect", "no file"]
)
def test_a_folder_or_database_that_cannot_be_used_is_one_error(settings, tmp_path, place, url):
    (tmp_path / "file").touch()
    chosen = replace(settings, corrections=tmp_path / place, corrections_database=url)
    with pytest.raises(InputError, match="store of corrections"):
        create_app(chosen, decoder=InProcessDecoder())
