"""Transfers survive what servers, connections and power do to them; nobody waits."""

import hashlib
import sys
import time
from email.utils import formatdate
from unittest.mock import Mock

import pytest

from models.errors import DataError
from tests.make import kill_when, ran
from tests.training.dataset.file_server import FileServer
from training.dataset import transfer
from training.dataset.transfer import Fetcher, RemoteFile

CONTENT = bytes(range(251)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server():
    return FileServer({"/a.tar.gz": CONTENT})


@pytest.fixture
def waits(monkeypatch):
    """The pauses of all fetchers in seconds; they pass at once."""
    passed = []
    monkeypatch.setattr(transfer, "monotonic", lambda: 1000.0 + sum(passed))
    monkeypatch.setattr(Fetcher, "_wait", lambda self, seconds: passed.append(seconds))
    return passed


@pytest.fixture(autouse=True)
def _frequent_syncs(monkeypatch):
    monkeypatch.setattr(transfer, "_SYNC_BYTES", 100_000)


def fetch(server, path, md5=MD5, **options):
    """Returns what the fetcher told."""
    told = []
    with server.running() as url:
        Fetcher(tell=told.append, **options).fetch(RemoteFile(f"{url}/a.tar.gz", path, md5))
    return told


def test_a_cut_download_continues_where_it_was(server, tmp_path, waits):
    server.faults = ["cut", "cut"]
    told = fetch(server, tmp_path / "deep" / "a.tar.gz", md5="")
    assert (tmp_path / "deep" / "a.tar.gz").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.tar.gz"]
    starts = [int(span[6:-1] or 0) for _, _, span, _ in server.asked]
    assert starts[0] == 0 < starts[1] < starts[2]
    assert len(told) == 2
    assert all(0.5 <= wait <= 1 for wait in waits)  # each has brought bytes, so pauses do not grow


@pytest.mark.parametrize(
    ("fault", "tag", "say"),
    [
        ("no Range", '"one"', "without Range"),  # 200 in place of 206
        ("", '"two"', "has changed"),  # by If-Range
        ("no If-Range", '"two"', "has changed"),  # a server that sends the rest of another version
        ("another span", '"one"', "status 206 to a range"),
    ],
)
def test_what_cannot_be_continued_starts_again_and_says_so(server, tmp_path, waits, fault, tag, say):
    server.faults = ["cut", fault]

    def change(sentence):
        told.append(sentence)
        server.tag = tag

    told = []
    with server.running() as url:
        Fetcher(tell=change).fetch(RemoteFile(f"{url}/a.tar.gz", tmp_path / "a.tar.gz"))
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert say in told[1]
    assert [version for _, _, _, version in server.asked][:2] == ["", '"one"']  # asked with If-Range


@pytest.mark.parametrize(("version", "size", "starts"), [("", 300_000, [0]), ('"one"', 300_000, [200_000])])
def test_another_run_continues_from_the_last_sync_if_the_version_is_known(server, tmp_path, version, size, starts):
    (tmp_path / "a.tar.gz.part").write_bytes(CONTENT[:size][:-50_000] + bytes(50_000))  # as after a power failure
    if version:
        (tmp_path / "a.tar.gz.part.version").write_text(version)
    fetch(server, tmp_path / "a.tar.gz", md5="")
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert [int(span[6:-1] or 0) for _, _, span, _ in server.asked] == starts


@pytest.mark.parametrize(("fault", "size"), [("promises more", 0), ("", len(CONTENT) + 150_000)])
def test_status_416_ends_a_complete_part_and_begins_a_longer_one_again(server, tmp_path, waits, fault, size):
    (tmp_path / "a.tar.gz.part").write_bytes(bytes(size))
    server.faults = [fault]
    fetch(server, tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [
        ("120", 119, 121),
        ("99999", 599, 601),
        ("a date", 200, 301),
        ("soon", 0, 1),
    ],
)
def test_a_pause_is_as_long_as_the_server_asks_within_reason(server, tmp_path, waits, retry_after, least, most):
    date = formatdate(time.time() + 300, usegmt=True)
    server.faults = [(503, date if retry_after == "a date" else retry_after)]
    fetch(server, tmp_path / "a.tar.gz")
    assert len(waits) == 1
    assert least <= waits[0] <= most


def test_pauses_grow_and_end_in_one_error(server, tmp_path, waits):
    server.faults = [(503, "")] * 9
    with pytest.raises(DataError, match=r"status 503 after 5 attempts.*run the same command again"):
        fetch(server, tmp_path / "a.tar.gz", attempts=5)
    assert [round(wait / 2**number, 1) in {0.5, 0.6, 0.7, 0.8, 0.9, 1.0} for number, wait in enumerate(waits)] == [
        True
    ] * 4


def test_no_server_is_one_error_and_a_missing_file_is_not_asked_for_twice(server, tmp_path, waits):
    with server.running() as url:
        with pytest.raises(DataError, match="status 404"):
            Fetcher().fetch(RemoteFile(f"{url}/b.zip", tmp_path / "b.zip"))
        with pytest.raises(DataError, match="correct the address"):
            Fetcher().fetch(RemoteFile("file:///etc/passwd", tmp_path / "b.zip"))
        assert Fetcher().num_bytes(f"{url}/a.tar.gz") == len(CONTENT)
    assert len(server.asked) == 2
    with pytest.raises(DataError, match="proxy variables"):
        Fetcher(attempts=2, tell=str).num_bytes(f"{url}/a.tar.gz")


def test_a_wrong_copy_is_refused_and_kept_apart(server, tmp_path):
    with pytest.raises(DataError, match=rf"MD5 {MD5}.*expected MD5 123.*a\.tar\.gz\.wrong"):
        fetch(server, tmp_path / "a.tar.gz", md5="123")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz.wrong"]


def test_a_file_that_is_too_long_is_left(server, tmp_path):
    with server.running() as url, pytest.raises(DataError, match=r"at most 0\.1 MB"):
        Fetcher().fetch(RemoteFile(f"{url}/a.tar.gz", tmp_path / "a.tar.gz"), max_bytes=100_000)
    assert not list(tmp_path.iterdir())


def test_requests_to_a_host_keep_their_distance(server, tmp_path, waits):
    with server.running() as url:
        fetcher = Fetcher(pause_s=1.0)
        for number in range(3):
            fetcher.fetch(RemoteFile(f"{url}/a.tar.gz", tmp_path / str(number)))
    assert waits == [1.0, 1.0]


def test_a_full_disk_is_one_error_and_the_part_stays(server, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(transfer.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*a\.tar\.gz"):
        fetch(server, tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz.part").exists()


def test_a_killed_process_leaves_what_another_continues(server, tmp_path):
    server.faults = ["hold"]
    target = tmp_path / "a.tar.gz"
    with server.running() as url:
        code = (
            "from pathlib import Path; from training.dataset import transfer; transfer._SYNC_BYTES = 100_000\n"
            f"transfer.Fetcher().fetch(transfer.RemoteFile({url + '/a.tar.gz'!r}, Path({str(target)!r})))"
        )
        part = tmp_path / "a.tar.gz.part"
        kill_when(lambda: part.exists() and part.stat().st_size > 250_000, sys.executable, "-c", code)
        ran(sys.executable, "-c", code, check=True)
    assert target.read_bytes() == CONTENT
    assert [span for _, _, span, _ in server.asked][1] > "bytes=1"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
