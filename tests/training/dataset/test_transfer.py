"""Transfers survive what servers, connections and power do to them; nobody waits."""

import hashlib
import sys
import time
from contextlib import nullcontext
from email.utils import formatdate
from itertools import count
from unittest.mock import Mock

import pytest

from models.errors import DataError
from tests.make import from_table, kill_when, ran
from tests.serving.tiny import GREEN, jpeg
from tests.training.dataset.file_server import PIECE, FileServer
from training.dataset import transfer
from training.dataset.transfer import Fetcher, NoAnswer, RemoteFile

CONTENT = bytes(range(251)) * 2000
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


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


def fetch(server, path, checksum=MD5, num_bytes=None, is_picture=False, **options):
    """Returns what the fetcher told."""
    told = []
    with server.running() as url:
        file = RemoteFile(f"{url}/a.tar.gz", path, checksum, num_bytes, is_picture)
        Fetcher(tell=told.append, **options).fetch(file)
    return told


def starts(server):
    return [int(span[6:-1] or 0) for _, _, span in server.asked]


def test_a_cut_download_continues_where_it_was(server, tmp_path, waits):
    server.faults = ["cut", "cut"]
    told = fetch(server, tmp_path / "deep" / "a.tar.gz")
    assert (tmp_path / "deep" / "a.tar.gz").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.tar.gz"]
    first, second, third = starts(server)
    assert first == 0 < second < third
    assert len(told) == 2
    assert all(0.5 <= wait <= 1 for wait in waits)  # each has brought bytes, so pauses do not grow


@from_table
def test_what_cannot_be_continued_starts_again_and_says_so(server, tmp_path, waits, fault, checksum, say):
    server.faults = ["cut", fault]
    told = fetch(server, tmp_path / "a.tar.gz", checksum)
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert say in told[-1]
    assert (starts(server)[1] == 0) == (not checksum)


@pytest.mark.parametrize(("checksum", "start"), [("", 0), (MD5, 300_000)])
def test_another_run_continues_if_a_checksum_is_known(server, tmp_path, checksum, start):
    (tmp_path / "a.tar.gz.part").write_bytes(CONTENT[:300_000])
    fetch(server, tmp_path / "a.tar.gz", checksum)
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert starts(server) == [start]


@pytest.mark.parametrize("piece", ["piece", "some piece"])
def test_pieces_that_nobody_asked_for_go_on_or_are_not_taken_for_the_whole(server, tmp_path, waits, piece):
    server.faults = [piece] * 6
    assert not fetch(server, tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert starts(server)[:6] == [*range(0, len(CONTENT), PIECE)]
    server.faults = [piece] * 6
    total = "502,000" if piece == "piece" else r"\?"
    with pytest.raises(NoAnswer, match=f"only 100,000 of {total} bytes came"):
        fetch(server, tmp_path / "b", checksum="", attempts=3)
    assert not (tmp_path / "b").exists()


@from_table
def test_complete_is_the_announced_length_or_a_checksum(server, tmp_path, length, options, problem):
    server.length = length
    with pytest.raises(DataError, match=problem) if problem else nullcontext():
        fetch(server, tmp_path / "a.tar.gz", **options)
    assert [path.name for path in tmp_path.iterdir()] == [] if problem else ["a.tar.gz"]


@pytest.mark.parametrize("length", ["", "chunks"])
@pytest.mark.parametrize(("end", "problem"), [(None, ""), (-300, "no picture: cut off")])
def test_or_a_picture_that_decodes(server, tmp_path, length, end, problem):
    server.files["/a.tar.gz"] = jpeg(GREEN)[:end]
    server.length = length
    with pytest.raises(DataError, match=problem) if problem else nullcontext():
        fetch(server, tmp_path / "a.jpg", checksum="", is_picture=True)
    assert [path.name for path in tmp_path.iterdir()] == [] if problem else ["a.jpg"]


def test_a_host_that_drips_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "monotonic", count(0, 400).__next__)  # seconds between two looks at the clock
    with pytest.raises(NoAnswer, match="not whole after 600 s"):
        fetch(server, tmp_path / "a.tar.gz", attempts=1, max_s=600)
    assert not (tmp_path / "a.tar.gz").exists()


ODD = ("http://./x", f"http://{'a' * 64}.example/x", "http://☃/x", "http://a..b/x", "http://[::1/x", "http://h:x/")


@pytest.mark.parametrize("url", [*ODD, "ftp://host/x", f"http://host/{'a' * 70_000}", "http://host/\udcff"])
def test_an_address_that_nobody_can_read_is_one_error(tmp_path, url):
    with pytest.raises(DataError, match="correct the address"):
        Fetcher().fetch(RemoteFile(url, tmp_path / "x"))
    with pytest.raises(DataError, match="correct the address"):
        Fetcher().num_bytes(url)


@pytest.mark.parametrize("url", [*ODD[:3], "file:///etc/passwd", "/a.tar.gz"])
def test_a_redirect_to_such_an_address_or_in_a_circle_is_one_error(server, tmp_path, waits, url):
    server.files["/a.tar.gz"] = url
    with pytest.raises(DataError, match=r"cannot be fetched|private network"):
        fetch(server, tmp_path / "x", attempts=1)


def test_a_redirect_may_not_lead_into_a_private_network(server, tmp_path):
    inner = FileServer({"/a.tar.gz": b"secret"})
    with inner.running() as private:
        server.files |= {"/b": CONTENT, "/a.tar.gz": f"{private}/a.tar.gz"}
        with pytest.raises(DataError, match=r"private network \(got 127\.0\.0\.1"):
            fetch(server, tmp_path / "a.tar.gz")
        for host in ("10.0.0.1", "169.254.1.1", "[fd00::1]", "[::ffff:10.0.0.1]"):
            server.files["/a.tar.gz"] = f"http://{host}/a.tar.gz"
            with pytest.raises(DataError, match="private network"):
                fetch(server, tmp_path / "a.tar.gz", attempts=1)
        server.files["/a.tar.gz"] = "/b"
        fetch(server, tmp_path / "a.tar.gz")
    assert not inner.asked
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT


def test_a_proxy_that_cannot_be_used_is_one_error(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "gopher://host")
    with pytest.raises(DataError, match="a proxy of the environment"):
        Fetcher()


@pytest.mark.parametrize(("more", "num_requests"), [(0, 1), (150_000, 2)])
def test_status_416_ends_a_complete_part_and_begins_a_longer_one_again(server, tmp_path, waits, more, num_requests):
    (tmp_path / "a.tar.gz.part").write_bytes(CONTENT + bytes(more))
    fetch(server, tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == CONTENT
    assert len(server.asked) == num_requests


@from_table
def test_a_pause_is_as_long_as_the_server_asks_within_reason(server, tmp_path, waits, retry_after, least, most):
    date = formatdate(time.time() + 300, usegmt=True)
    server.faults = [(503, date if retry_after == "a date" else retry_after)]
    fetch(server, tmp_path / "a.tar.gz")
    assert len(waits) == 1
    assert least <= waits[0] <= most


def test_pauses_grow_and_end_in_one_error(server, tmp_path, waits):
    server.faults = [(503, "")] * 9
    with pytest.raises(DataError, match=r"status 503\).*run the same command again"):
        fetch(server, tmp_path / "a.tar.gz", attempts=5)
    assert [round(wait / 2**number, 1) in {0.5, 0.6, 0.7, 0.8, 0.9, 1.0} for number, wait in enumerate(waits)] == [
        True
    ] * 4


def test_no_server_is_one_error_and_a_missing_file_is_not_asked_for_twice(server, tmp_path, waits):
    with server.running() as url:
        with pytest.raises(DataError, match="status 404"):
            Fetcher().fetch(RemoteFile(f"{url}/b.zip", tmp_path / "b.zip"))
        assert Fetcher().num_bytes(f"{url}/a.tar.gz") == len(CONTENT)
    assert len(server.asked) == 2
    with pytest.raises(DataError, match="proxy variables"):
        Fetcher(attempts=2, tell=str).num_bytes(f"{url}/a.tar.gz")


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_wrong_copy_is_refused_and_kept_apart(server, tmp_path, kind):
    right = hashlib.new(kind, CONTENT).hexdigest()
    fetch(server, tmp_path / "right", f"{kind}:{right}")
    with pytest.raises(DataError, match=rf"got {kind}:{right}; expected {kind}:123.*a\.tar\.gz\.wrong"):
        fetch(server, tmp_path / "a.tar.gz", f"{kind}:123")
    assert {path.name for path in tmp_path.iterdir()} == {"right", "a.tar.gz.wrong"}


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
            "from pathlib import Path; from training.dataset import transfer\n"
            f"transfer.Fetcher().fetch(transfer.RemoteFile({url + '/a.tar.gz'!r}, Path({str(target)!r}), {MD5!r}))"
        )
        part = tmp_path / "a.tar.gz.part"
        kill_when(lambda: part.exists() and part.stat().st_size > 250_000, sys.executable, "-c", code)
        ran(sys.executable, "-c", code, check=True)
    assert target.read_bytes() == CONTENT
    assert [span for _, _, span in server.asked][1] > "bytes=1"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
