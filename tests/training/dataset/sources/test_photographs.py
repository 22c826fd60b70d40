"""Photographs of a list come from many servers, none of which holds up the others; what is no picture did not come."""

import csv
import threading
from collections import Counter
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from tests.serving.tiny import GREEN, jpeg
from tests.training.dataset.file_server import FileServer
from training.dataset import transfer
from training.dataset.sources import photographs
from training.dataset.sources.photographs import Photograph, import_photographs, picture_path
from training.dataset.transfer import Fetcher, NoAnswer


class Servers:
    """Stands for the fetcher and the clock: `silent` are hosts and addresses that give no answer."""

    def __init__(self):
        self.silent = {}
        self.asked = []
        self.now = 0.0
        self.stopped = SimpleNamespace(wait=self.pass_time, set=None)
        self.running = Counter()
        self.most = 0

    def pass_time(self, seconds):
        self.now += seconds

    def fetch(self, file):
        host = urlsplit(file.url).hostname
        self.running[host] += 1
        self.most = max(self.most, self.running[host])
        self.asked.append(host)
        threading.Event().wait(0.001)
        self.running[host] -= 1
        wait_s = self.silent.get(file.url, self.silent.get(host))
        if wait_s is not None:
            error = NoAnswer("no answer", value="it is down")
            error.wait_s = wait_s
            raise error
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_bytes(jpeg(GREEN))


@pytest.fixture
def servers(monkeypatch):
    made = Servers()
    monkeypatch.setattr(photographs, "Fetcher", lambda **_: made)
    monkeypatch.setattr(photographs, "monotonic", lambda: made.now)
    monkeypatch.setattr(photographs, "_THREADS", 1)
    return made


def imported(folder, urls, at_once=4):
    listed = [Photograph(f"photographs/{at}.jpg", url, {"scientific_name": "Rosa"}) for at, url in enumerate(urls)]
    return import_photographs(listed, folder / "list.csv", Counter(), at_once=at_once, pause_s=0.0)


def urls_of(*hosts):
    return [f"http://{host}/{number}.jpg" for number in range(20) for host in hosts]


def test_a_server_without_an_answer_is_asked_after_all_others_with_longer_pauses(servers, tmp_path):
    servers.silent = {"dead": 0.0}
    found = imported(tmp_path, urls_of("dead", "good"))
    assert servers.asked == ["dead", *["good"] * 20, *["dead"] * 7]
    assert servers.now == 1 + 2 + 4 + 8 + 16 + 32 + 64
    assert (found.num_pictures, found.left_out) == (20, {"not fetched: it is down": 20})


def test_a_pause_of_years_is_ten_minutes_for_all_photographs_of_a_server(servers, tmp_path):
    servers.silent = {"busy": 600.0}
    found = imported(tmp_path, urls_of("busy", "good"))
    assert servers.asked == ["busy", *["good"] * 20, "busy"]
    assert (servers.now, found.num_pictures) == (600, 20)


def test_a_photograph_that_alone_gets_no_answer_is_asked_for_three_times(servers, tmp_path):
    servers.silent = {"http://good/0.jpg": 0.0}
    assert imported(tmp_path, urls_of("good")).num_pictures == 19
    assert len(servers.asked) == 22


def test_a_failure_of_several_requests_at_one_time_counts_once(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "_THREADS", 4)
    servers.silent = {"dead": 0.0}
    with pytest.raises(photographs.DataError, match="no photograph is left"):
        imported(tmp_path, urls_of("dead"))
    assert servers.now == 1 + 2 + 4 + 8 + 16 + 32 + 64


def test_a_server_gets_only_so_many_requests_at_a_time_whatever_others_get(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "_THREADS", 6)
    assert imported(tmp_path, urls_of("a", "b"), at_once=2).num_pictures == 40
    assert servers.most == 2


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(Fetcher, "_wait", lambda self, seconds: None)
    monkeypatch.setattr(photographs, "_LONGEST_PAUSE_S", 0.0)
    return FileServer({f"/{number}.jpg": jpeg(GREEN) for number in range(6)})


def failures(folder):
    with (folder / "failed.csv").open() as stream:
        return {row["path"][-5:]: row["reason"] for row in csv.DictReader(stream)}


def test_what_is_no_picture_was_not_fetched_and_the_next_run_asks_again(server, tmp_path):
    pictures = dict(server.files)
    page = b"<!DOCTYPE html><html><body>One moment please</body></html>"
    server.files |= {"/1.jpg": page, "/2.jpg": b"", "/3.jpg": "http://./x.jpg"}
    (tmp_path / "photographs").mkdir()
    for number in (1, 4):  # as an older botanify kept them
        (tmp_path / "photographs" / f"{number}.jpg").write_bytes(page)
    with server.running() as url:
        urls = [*(f"{url}{path}" for path in pictures), "http://xn--/x.jpg"]
        found = imported(tmp_path, urls)
        assert found.num_pictures == 3
        assert (
            found.left_out["not fetched: no picture: text"] == found.left_out["not fetched: no picture: nothing"] == 1
        )
        assert failures(tmp_path).keys() == {"1.jpg", "2.jpg", "3.jpg", "6.jpg"}
        server.files = pictures
        server.asked.clear()
        assert imported(tmp_path, urls).num_pictures == 6
    assert sorted(path for _, path, *_ in server.asked) == ["/1.jpg", "/2.jpg", "/3.jpg"]
    assert failures(tmp_path).keys() == {"6.jpg"}


def test_a_full_disk_ends_the_import(server, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer.os, "fsync", full)
    with server.running() as url, pytest.raises(OSError, match="No space left"):
        imported(tmp_path, [f"{url}/1.jpg"])


@pytest.mark.parametrize("number", ["", "1/2", "x" * 101, "１２", "..", "a\0"])
def test_a_number_that_can_be_no_name_has_no_path(number):
    assert picture_path(number, "http://host/x.jpg") is None
    assert picture_path("12-ab", "http://host/x.PNG") == "photographs/12-ab.png"
