"""Corrections over HTTP: kept with their answer and the pictures that were given, replaced, taken back, refused."""

import asyncio
import hashlib
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from msgspec.structs import asdict, replace
from sqlalchemy import Engine, event, make_url
from structlog.testing import capture_logs

from models.errors import InputError
from serving.access.keys import make_key
from serving.app import create_app
from serving.corrections import store as store_module
from serving.corrections.service import CorrectionService
from serving.corrections.store import DATABASE_FILE, Store, _open
from serving.errors import StoreUnavailable
from tests.serving.conftest import ready_service
from tests.serving.corrections.test_program import correction
from tests.serving.program import PATIENCE_S
from tests.serving.tiny import GREEN, TAXA, TAXONOMY, InProcessDecoder, assert_problem, jpeg, seal_tiny_bundle
from tests.waiting import wait_until

ROSE, DAISY = jpeg(), jpeg(GREEN)


def running(settings, folder, **more):
    return ready_service(**asdict(replace(settings, corrections=folder, **more)))


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A busy machine stores as late as it likes; tests of the deadline have their own."""
    monkeypatch.setattr("serving.corrections.service._DEADLINE_S", PATIENCE_S)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "corrections"


@pytest.fixture
def client(settings, folder):
    with running(settings, folder) as client:
        yield client


def ask(client, *pictures, **more):
    return client.post("/identify", files=[("image", each) for each in pictures or (ROSE,)], **more).json()[
        "request_id"
    ]


def correct(client, request_id, *pictures, headers=None, **fields):
    files = [("image", each) for each in pictures]
    return client.post(f"/identify/{request_id}/correction", files=files or None, params=fields, headers=headers)


def kept(folder):
    with Store(folder) as store:
        return list(store.all())


def files(folder):
    return {path.name for path in folder.glob("pictures/*/*")}


def test_a_correction_is_kept_with_its_answer_and_the_pictures_that_were_given(client, folder):
    body = correct(client, ask(client, ROSE, DAISY), DAISY, taxon="Rosa rugosa", certain="true").json()
    assert (body["taxon_id"], body["name"], body["num_pictures"], body["days"]) == (
        "rosa-rugosa",
        "Rosa rugosa",
        1,
        365,
    )
    (found,) = kept(folder)
    assert (found.correction_id, found.taxon_id, found.certain) == (body["correction_id"], "rosa-rugosa", True)
    assert (found.model, found.verdict_rank, found.person) == ("tiny 0.0.1", found.verdict_rank, "")
    assert found.predicted in found.predictions
    assert 0 < found.score < 1
    with Store(folder) as store:
        assert [store.path(sha256).read_bytes() for sha256 in found.pictures] == [DAISY]


@pytest.mark.parametrize("sent", ["plant-42", "garden/42", "..", "5%", "a?b#c", "x" * 128])
def test_an_answer_is_corrected_whatever_id_its_client_has_chosen(client, sent):
    request_id = ask(client, headers={"X-Request-ID": sent})
    assert correct(client, quote(request_id, safe=""), taxon="crocus").status_code == 200


def test_without_the_flag_nothing_is_kept_and_there_is_no_route(settings, tmp_path):
    with ready_service(bundle=settings.bundle) as client:
        assert_problem(correct(client, ask(client), taxon="crocus"), 404, "not_found")
        assert client.get("/model").json()["corrections"] is None
    assert not list(tmp_path.rglob("*.sqlite"))


def test_without_pictures_none_is_kept_and_a_plant_may_be_one_that_the_model_does_not_know(client, folder):
    assert correct(client, ask(client), other="Quercus suber").json()["taxon_id"] is None
    (found,) = kept(folder)
    assert (found.name, found.taxon_id, found.certain, found.pictures) == ("Quercus suber", None, False, ())
    assert files(folder) == set()


def test_a_second_correction_replaces_the_first_with_its_pictures(client, folder):
    request_id = ask(client, ROSE, DAISY)
    first = correct(client, request_id, ROSE, taxon="rosa-canina").json()
    second = correct(client, request_id, DAISY, taxon="Hundsrose").json()
    assert first["correction_id"] == second["correction_id"]
    (found,) = kept(folder)
    assert files(folder) == set(found.pictures)
    assert len(found.pictures) == 1


def test_a_correction_is_taken_back_with_its_pictures_but_those_of_others_stay(client, folder):
    first, second = (correct(client, ask(client), ROSE, taxon="crocus").json()["correction_id"] for _ in range(2))
    assert client.delete(f"/corrections/{first}").status_code == 204
    assert len(files(folder)) == 1
    assert client.delete(f"/corrections/{second}").status_code == 204
    assert (files(folder), kept(folder)) == (set(), [])
    assert_problem(client.delete(f"/corrections/{second}"), 404, "unknown_answer")


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


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"taxon": "crocus", "other": "a crocus"},
        {"taxon": "no such plant"},
        {"taxon": "Rosa"},
        {"other": "x" * 201},
        {"other": "a\x00b"},
        {"other": "a\tb"},
        {"other": "a\u202eb"},
        {"other": "a\u2066b"},
        {"other": "\u200d"},
        {"other": "\u00ad"},
        {"taxon": "crocus", "certain": "maybe"},
    ],
)
def test_a_correction_that_says_nothing_clear_is_refused(client, folder, fields):
    assert_problem(correct(client, ask(client), **fields), 422, "bad_parameter")
    assert kept(folder) == []


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("گل\u200cسرخ", "گل\u200cسرخ"),
        ("क्\u200dष", "क्\u200dष"),
        ("ක්\u200dර", "ක්\u200dර"),
        ("Chêne\u00a0vert", "Chêne vert"),
        ("Che\u0302ne vert", "Chêne vert"),
        ("Schnee\u00adglöckchen", "Schneeglöckchen"),
    ],
)
def test_people_name_plants_as_their_language_is_spelled(client, typed, name):
    assert correct(client, ask(client), other=typed).json()["name"] == name


def test_a_name_that_is_too_long_for_postgresql_is_refused_with_sqlite_too(settings, folder, tmp_path, monkeypatch):
    taxa = [replace(taxon, scientific_name="Rosa " + "x" * 196) for taxon in TAXA[:1]] + list(TAXA[1:])
    monkeypatch.setattr("tests.serving.tiny.TAXONOMY", replace(TAXONOMY, taxa=tuple(taxa)))
    named_long = seal_tiny_bundle(tmp_path / "named_long", tmp_path).folder
    with running(settings, folder, bundle=named_long) as client:
        problem = assert_problem(correct(client, ask(client), taxon="rosa-canina"), 422, "bad_parameter")
        assert "201 characters" in problem["detail"]
        assert "at most 200" in problem["detail"]
        assert "`other`" in problem["detail"]
        assert correct(client, ask(client), other="a wild rose").status_code == 200
    with Store(folder) as store, pytest.raises(InputError, match=r"at most 200\): give a shorter one\.$"):
        store.review([each.correction_id for each in store.all()], "r" * 201, accepted=True)


def test_an_answer_whose_own_texts_are_too_long_can_be_corrected(settings, folder, tmp_path, monkeypatch):
    taxa, outputs = list(TAXA), list(TAXONOMY.outputs)
    taxa[0], outputs[0] = (replace(each[0], taxon_id="r" * 201) for each in (taxa, outputs))
    monkeypatch.setattr("tests.serving.tiny.TAXONOMY", replace(TAXONOMY, taxa=tuple(taxa), outputs=tuple(outputs)))
    with running(settings, folder, bundle=seal_tiny_bundle(tmp_path / "long", tmp_path).folder) as client:
        assert correct(client, ask(client), taxon="crocus").status_code == 200
    (found,) = kept(folder)
    assert found.predicted == "r" * 200
    assert "r" * 201 in found.predictions


def test_only_pictures_that_were_identified_are_kept(client, folder):
    assert_problem(correct(client, ask(client), DAISY, taxon="crocus"), 422, "bad_parameter")
    assert (files(folder), kept(folder)) == (set(), [])
    assert_problem(correct(client, ask(client), ROSE, DAISY, taxon="crocus"), 422, "bad_parameter")
    assert (files(folder), kept(folder)) == (set(), [])
    answer = client.post(f"/identify/{ask(client)}/correction", content=ROSE, headers={"Content-Type": "image/jpeg"})
    assert_problem(answer, 400, "malformed_body")


def test_an_answer_is_corrected_only_by_the_client_that_got_it(settings, folder):
    ann, bob = (make_key(name) for name in ("ann", "bob"))
    keys = ",".join(key.line for _, key in (ann, bob))
    with running(settings, folder, api_keys=keys) as client:
        mine, theirs = ({"Authorization": f"Bearer {secret}"} for secret, _ in (ann, bob))
        request_id = ask(client, headers=mine)
        assert_problem(correct(client, request_id, taxon="crocus"), 401, "unauthorized")
        assert_problem(correct(client, request_id, taxon="crocus", headers=theirs), 404, "unknown_answer")
        assert correct(client, request_id, taxon="crocus", headers=mine).status_code == 200
        assert_problem(correct(client, "nosuch", taxon="crocus", headers=mine), 404, "unknown_answer")
    assert [each.person for each in kept(folder)] == ["ann"]


def test_a_full_store_refuses_pictures_but_neither_answers_nor_words(settings, folder):
    with running(settings, folder, corrections_bytes=len(ROSE) + 1) as client:
        assert correct(client, ask(client), ROSE, taxon="crocus").status_code == 200
        assert correct(client, ask(client), ROSE, taxon="crocus").status_code == 200  # the same bytes need no room
        request_id = ask(client, DAISY)
        problem = assert_problem(correct(client, request_id, DAISY, taxon="crocus"), 507, "store_full")
        assert f"got {len(ROSE) + len(DAISY):,} bytes" in problem["detail"]
        assert correct(client, request_id, taxon="crocus").status_code == 200


@pytest.fixture
def hasty_client(settings, folder, monkeypatch):
    monkeypatch.setattr("serving.corrections.store._LOCK_S", 0.1)
    with running(settings, folder) as client:
        yield client


def test_a_locked_database_and_a_broken_disk_cost_no_answer(hasty_client, folder, monkeypatch):
    client, request_id = hasty_client, ask(hasty_client)
    with sqlite3.connect(folder / DATABASE_FILE, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        response = correct(client, request_id, taxon="crocus")
        assert_problem(response, 503, "store_unavailable")
        assert response.headers["retry-after"]
        assert_problem(client.delete(f"/corrections/{0:032x}"), 503, "store_unavailable")
        assert ask(client)
        other.execute("ROLLBACK")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert_problem(correct(client, request_id, ROSE, taxon="crocus"), 503, "store_unavailable")
    assert ask(client)
    monkeypatch.undo()
    assert (files(folder), kept(folder)) == (set(), [])
    assert correct(client, request_id, ROSE, taxon="crocus").status_code == 200


def test_who_only_reads_does_not_wait_for_a_writer(folder, monkeypatch):
    Store(folder).close()
    monkeypatch.setattr("serving.corrections.store._LOCK_S", 0.1)
    with sqlite3.connect(folder / DATABASE_FILE, isolation_level=None) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert kept(folder) == []
        writer.execute("ROLLBACK")


def test_what_is_too_old_goes_at_the_next_start(settings, folder):
    with running(settings, folder) as client:
        correct(client, ask(client), ROSE, taxon="crocus")
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        database.execute("UPDATE corrections SET created = '2020-01-01T00:00:00+00:00'")
    with running(settings, folder):
        wait_until(lambda: (files(folder), kept(folder)) == (set(), []))


def test_metrics_tell_how_much_is_kept_of_how_much_and_since_when(settings, folder):
    with running(settings, folder, corrections_bytes=1_000_000) as client:
        for _ in range(2):
            correct(client, ask(client), ROSE, taxon="crocus")  # one picture, which counts once
    ages = timedelta(days=20), timedelta(days=10)
    created = [((datetime.now(UTC) - age).isoformat(timespec="seconds"), row) for row, age in enumerate(ages, 1)]
    with sqlite3.connect(folder / DATABASE_FILE) as database:
        database.executemany("UPDATE corrections SET created = ? WHERE rowid = ?", created)

    def told(client):
        text = client.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"^botanify_(\w+) (\S+)$", text, re.MULTILINE)}

    with running(settings, folder, corrections_bytes=1_000_000, corrections_days=30) as client:
        wait_until(lambda: told(client)["corrections"] == 2)
        found = told(client)
    assert (found["ready"], found["corrections_bytes"], found["corrections_limit_bytes"]) == (1, len(ROSE), 1_000_000)
    assert found["corrections_age_limit_seconds"] == 30 * 86_400
    assert timedelta(days=20) <= timedelta(seconds=found["corrections_age_seconds"] + 1) < timedelta(days=21)


def test_expired_corrections_go_and_so_do_files_without_a_row(folder):
    now = datetime.now(UTC)
    days = (364, 366)
    with Store(folder) as store:
        for number, age in enumerate(days):
            created = (now - timedelta(days=age)).isoformat(timespec="seconds")
            store.put(correction(number, created=created), [(ROSE, DAISY)[number]])
        lost = {61: store.path("ab" * 32), 59: store.path("cd" * 32)}
        for minutes, path in lost.items():
            path.parent.mkdir()
            path.touch()
            os.utime(path, 2 * ((now - timedelta(minutes=minutes)).timestamp(),))
        assert store.purge(365) == 1
        assert [each.correction_id for each in store.all()] == [f"{0:032x}"]
        assert [path.exists() for path in lost.values()] == [False, True]
        assert (store.path(hashlib.sha256(ROSE).hexdigest()).exists(), len(files(folder))) == (True, 2)


def test_a_purge_asks_for_many_pictures_at_once(folder):
    with Store(folder) as store:
        pictures = [bytes([number]) for number in range(40)]
        for number, picture in enumerate(pictures):
            store.put(correction(number, created=datetime.now(UTC).isoformat()), [picture])
        for path in folder.glob("pictures/*/*"):
            os.utime(path, (0, 0))
        statements = []
        with listening("before_cursor_execute", lambda *told: statements.append(told[2])):
            store.purge(365)
        assert len(files(folder)) == len(pictures)
        assert len(statements) < len(pictures) / 4


@contextmanager
def listening(name, listener):
    event.listen(Engine, name, listener)
    yield
    event.remove(Engine, name, listener)


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

    monkeypatch.setattr("serving.corrections.store.create_engine", lambda *_, **more: made.update(more))
    _open(make_url("postgresql+psycopg://botanify@nosuch/corrections"))
    limits = made["connect_args"]
    assert limits["options"] == "-c statement_timeout=5000"
    assert (limits["connect_timeout"], limits["tcp_user_timeout"], limits["keepalives_idle"]) == (5, 5000, 5)


def test_words_of_people_are_neither_logged_nor_answered_when_they_cannot_be_stored(client, folder):
    request_id = ask(client)
    with sqlite3.connect(folder / DATABASE_FILE) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON corrections BEGIN SELECT RAISE(ABORT, 'no'); END")
    with capture_logs() as logged:
        response = correct(client, request_id, other="a secret of ann")
    assert_problem(response, 503, "store_unavailable")
    assert [each for each in logged if each["event"] == "store_unavailable"]
    assert "secret" not in f"{logged} {response.text}"
    with Store(folder) as store, pytest.raises(StoreUnavailable) as caught:
        store.put(correction(0, "a secret of ann"), [])
    assert "secret" not in str(caught.value.__cause__)  # the log has its beginning


def test_the_id_of_a_correction_is_in_neither_log_nor_metrics(client):
    secret = correct(client, ask(client), taxon="crocus").json()["correction_id"]
    with capture_logs() as logged:
        assert client.delete(f"/corrections/{secret}").status_code == 204
    [line] = [each for each in logged if each["event"] == "request"]
    assert line["route"] == "/corrections/{correction_id}"
    metrics = client.get("/metrics").text
    assert 'method="DELETE",route="/corrections/{correction_id}"' in metrics
    assert secret not in f"{logged} {metrics}"


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
        waiting = pool.submit(correct, client, first, ROSE, taxon="crocus")
        stuck.began.acquire()
        (admitted,) = client.service.admission._admitted
        assert (admitted.has_begun, admitted.num_pictures_expected(admitted.arrived_at)) == (True, 0)
        assert_problem(correct(client, second, ROSE, taxon="crocus"), 503, "overloaded")
        stuck.response.set()
        assert waiting.result().status_code == 200


def test_a_database_that_does_not_respond_is_asked_once_and_holds_neither_answers_nor_the_stop(
    settings, folder, stuck, monkeypatch
):
    monkeypatch.setattr("serving.corrections.service._DEADLINE_S", 0.1)
    monkeypatch.setattr("serving.corrections.service._CLOSE_S", 0.1)
    with running(settings, folder) as client:
        request_id = ask(client)
        for _ in range(2):
            assert_problem(correct(client, request_id, taxon="crocus"), 503, "store_unavailable")
        where = f"/identify/{request_id}/correction"
        unread = client.post(where, content=b"not a form", headers={"Content-Type": "multipart/form-data; boundary=x"})
        assert_problem(unread, 503, "store_unavailable")
        assert ask(client)
        assert stuck.began.acquire(timeout=0)
        assert not stuck.began.acquire(timeout=0)
    assert stuck.ended == []


def test_corrections_are_stored_again_once_the_database_responds(settings, folder, stuck, monkeypatch):
    with running(settings, folder) as client, ThreadPoolExecutor() as pool:
        with monkeypatch.context() as patch:
            patch.setattr("serving.corrections.service._DEADLINE_S", 0.1)
            request_id = ask(client)
            assert_problem(correct(client, request_id, taxon="crocus"), 503, "store_unavailable")
        stuck.response.set()
        wait_until(lambda: correct(client, request_id, taxon="crocus").status_code == 200)
        stuck.response.clear()
        waiting = [pool.submit(correct, client, request_id, taxon="crocus") for _ in range(2)]
        wait_until(
            lambda: (
                any(each.done() for each in waiting) or "botanify_requests_admitted 2.0" in client.get("/metrics").text
            )
        )
        stuck.response.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
    assert len(kept(folder)) == 1


def test_the_oldest_answer_is_forgotten_and_not_the_newest_of_an_id_that_is_used_again(client, monkeypatch):
    monkeypatch.setattr("serving.corrections.service._MAX_ANSWERS", 2)
    for request_id in ("a", "b", "a", "c"):
        ask(client, headers={"X-Request-ID": request_id})
    assert [correct(client, each, taxon="crocus").status_code for each in "abc"] == [200, 404, 200]


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
    outcomes, again = [RuntimeError], threading.Event()

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

    asyncio.run(act())


OPEN_WHEN_TOLD = """
import sys
from pathlib import Path
from serving.corrections.store import Store
print("ready", flush=True)
sys.stdin.readline()
Store(Path(sys.argv[1])).close()
"""


def test_services_that_open_a_new_folder_at_the_same_moment_all_start(folder):
    command = [sys.executable, "-c", OPEN_WHEN_TOLD, folder]
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        services = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(3)]
        assert [each.stdout.readline() for each in services] == ["ready\n"] * 3
        for each in services:
            each.stdin.close()
        assert [each.wait() for each in services] == [0, 0, 0]


def test_a_folder_or_database_that_cannot_be_used_is_one_error(settings, tmp_path):
    (tmp_path / "file").touch()
    for more in (
        {"corrections": tmp_path / "file"},
        {"corrections": tmp_path / "x", "corrections_database": "oracle:x"},
        {"corrections": tmp_path / "x", "corrections_database": "sqlite:///"},
    ):
        with pytest.raises(InputError, match="store of corrections"):
            create_app(replace(settings, **more), decoder=InProcessDecoder())
