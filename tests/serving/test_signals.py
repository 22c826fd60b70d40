"""Signals to the real program under load: shutdown, reload, and a decoder that crashes."""

import signal
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx
import psutil
import pytest

from models.bundle import load_bundle
from tests.serving.program import PATIENCE_S, ROOT, service
from tests.serving.tiny import RED, WEIGHTS, images, jpeg, seal_tiny_bundle
from tests.waiting import wait_until
from training.release import CURRENT, Registry

DEMONSTRATION = ROOT / "models" / "releases" / "garden_and_wild_plants"


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two bundles with different weights, and one whose network changed after it was sealed."""
    scratch = tmp_path_factory.mktemp("versions")
    folders = {}
    for version, weights in (("1.0.0", WEIGHTS), ("2.0.0", -WEIGHTS)):
        folders[version] = seal_tiny_bundle(scratch / version, scratch, version, weights).folder
    folders["corrupt"] = seal_tiny_bundle(scratch / "corrupt", scratch, "3.0.0").folder
    network = folders["corrupt"] / "model.fp32.onnx"
    network.write_bytes(network.read_bytes()[:-1] + b"x")
    return folders


@pytest.fixture
def live(versions, tmp_path):
    """The path of the served bundle, a link to version 1.0.0."""
    link = tmp_path / "live"
    link.symlink_to(versions["1.0.0"])
    return link


def point(link, folder):
    """Points the link to another folder, atomically."""
    new = link.with_suffix(".new")
    new.symlink_to(folder)
    new.replace(link)


class Load:
    """Clients that send requests without a pause, each over its own connection; closed connections are reopened."""

    def __init__(self, url, num_clients=4):
        self.answers, self.lost, self._stop = [], [], threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for _ in range(num_clients)]

    def _ask(self, url):
        picture = images(jpeg(RED))
        with httpx.Client(base_url=url, timeout=PATIENCE_S, verify=False) as client:
            while not self._stop.is_set():
                try:
                    self.answers.append((time.monotonic(), client.post("/identify", files=picture)))
                except httpx.ConnectError:
                    return  # the port is closed, and no request was lost
                except httpx.HTTPError as error:
                    self.lost.append(error)

    @contextmanager
    def running(self):
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def wait_for_answers(self, num_answers):
        """Waits for this many more answers."""
        wanted = len(self.answers) + num_answers
        wait_until(lambda: len(self.answers) >= wanted)

    @property
    def statuses(self):
        return Counter(response.status_code for _, response in self.answers)


def processes_of(pid):
    return psutil.Process(pid).children(recursive=True)


def test_sigterm_under_load_loses_no_request_and_leaves_no_process(live):
    with service(live, "--drain-s", "3") as running, running.client() as probe:
        children = processes_of(running.process.pid)
        assert children
        with Load(probe.base_url).running() as load:
            load.wait_for_answers(20)
            running.process.send_signal(signal.SIGTERM)
            running.event("draining")
            while_draining = probe.get("/health/ready")
            assert (while_draining.status_code, while_draining.json()["code"]) == (503, "not_ready")
            assert while_draining.headers["connection"] == "close"
            assert probe.get("/health/live").status_code == 200
            assert probe.post("/identify", files=images(jpeg())).status_code == 200
            assert running.process.wait(PATIENCE_S) == 0
        assert (load.lost, set(load.statuses)) == ([], {200})
        assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]


def test_second_sigterm_ends_the_process_at_once(live):
    with (
        service(live, "--drain-s", "60", "--shutdown-s", "90") as running,
        socket.create_connection(running.address()) as connection,
    ):
        connection.sendall(b"POST /identify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
        running.process.send_signal(signal.SIGTERM)
        running.event("draining")
        start = time.monotonic()
        assert running.stop(signal.SIGTERM) == 0
        assert time.monotonic() - start < 50  # the usual end takes 60 s
        assert "Traceback" not in "".join(running.lines)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
def test_sigterm_during_a_reload_exits_with_code_0(share):
    """A thread that is inside ONNX Runtime must not abort the process when it ends."""
    with service(DEMONSTRATION, "--num-decoders", "1") as running:
        start = time.monotonic()
        running.process.send_signal(signal.SIGHUP)
        running.event("reloaded")
        reload_s = time.monotonic() - start
        running.process.send_signal(signal.SIGHUP)
        time.sleep(share * reload_s)
        assert running.stop() == 0, running.lines[-5:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_memory_after_20_reloads_is_that_after_one():
    with service(DEMONSTRATION, "--num-decoders", "1") as running:
        process, sizes_mb = psutil.Process(running.process.pid), []
        for number in range(1, 21):
            running.process.send_signal(signal.SIGHUP)
            wait_until(lambda number=number: num_events(running, "reloaded") == number)
            time.sleep(1)  # the old network is freed in a thread
            sizes_mb.append(process.memory_info().rss / 1e6)
        assert sizes_mb[-1] < 1.1 * sizes_mb[0], sizes_mb
        assert running.stop() == 0


def num_events(running, name):
    return sum(f'"event": "{name}"' in line for line in running.lines)


def test_sighup_under_load_switches_the_bundle_without_mixing_answers(live, versions):
    with service(live) as running:
        with Load(running.url).running() as load:
            load.wait_for_answers(20)
            point(live, versions["2.0.0"])
            running.process.send_signal(signal.SIGHUP)
            running.event("reloaded", version="2.0.0")
            load.wait_for_answers(20)
        assert (load.lost, set(load.statuses)) == ([], {200})
        found = [(response.json()["model"]["version"], best(response)) for _, response in load.answers]
        assert set(found) == {("1.0.0", "Rosa canina"), ("2.0.0", best_of(found, "2.0.0"))}
        assert best_of(found, "2.0.0") != "Rosa canina"
        assert running.stop() == 0


def best(response):
    return response.json()["predictions"][0]["scientific_name"]


def best_of(found, version):
    return next(name for of, name in found if of == version)


def test_service_follows_the_pointer_of_a_registry(versions, tmp_path):
    registry = Registry(tmp_path / "registry")
    first = registry.promote(load_bundle(versions["1.0.0"]), expected=None)
    with service(registry.folder / CURRENT) as running, running.client() as client:
        registry.promote(load_bundle(versions["2.0.0"]), expected=first)
        assert client.get("/model").json()["version"] == "1.0.0"
        running.process.send_signal(signal.SIGHUP)
        running.event("reloaded", version="2.0.0")
        answer = client.post("/identify", files=images(jpeg(RED)))
        assert (answer.status_code, answer.json()["model"]["version"]) == (200, "2.0.0")
        registry.roll_back()
        running.process.send_signal(signal.SIGHUP)
        running.event("reloaded", version="1.0.0")
        assert best(client.post("/identify", files=images(jpeg(RED)))) == "Rosa canina"
        assert running.stop() == 0


def test_corrupt_bundle_is_refused_at_reload_and_the_old_one_stays(live, versions):
    with service(live) as running, running.client() as client:
        point(live, versions["corrupt"])
        running.process.send_signal(signal.SIGHUP)
        assert "SHA-256" in running.event("reload_refused")["error"]
        response = client.post("/identify", files=images(jpeg()))
        assert (response.status_code, response.json()["model"]["version"]) == (200, "1.0.0")
        assert 'botanify_reloads_total{outcome="refused"} 1.0' in client.get("/metrics").text
        assert running.stop() == 0


def test_network_whose_logits_are_not_finite_is_refused_at_reload(live, tmp_path):
    broken = seal_tiny_bundle(tmp_path / "broken", tmp_path, "4.0.0", WEIGHTS * float("nan")).folder
    with service(live) as running:
        point(live, broken)
        running.process.send_signal(signal.SIGHUP)
        assert "not finite" in running.event("reload_refused")["error"]
        assert running.stop() == 0


def test_admin_reload_needs_an_admin_key(live, versions):
    from serving.access.keys import make_key

    secret, key = make_key("operator", is_admin=True)
    with service(live, BOTANIFY_API_KEYS=key.line) as running, running.client() as client:
        assert client.post("/admin/reload").status_code == 401
        point(live, versions["2.0.0"])
        admin = {"authorization": f"Bearer {secret}"}
        assert client.post("/admin/reload", headers=admin).json()["version"] == "2.0.0"
        point(live, versions["corrupt"])
        refused = client.post("/admin/reload", headers=admin)
        assert (refused.status_code, refused.json()["code"]) == (409, "reload_refused")
        assert "SHA-256" in refused.json()["detail"]
        assert client.get("/model").json()["version"] == "2.0.0"
        assert running.stop() == 0


def test_crashed_decoder_fails_at_most_one_request(live):
    with service(live, "--num-decoders", "1") as running, running.client() as client:
        (child,) = processes_of(running.process.pid)
        with Load(running.url, num_clients=2).running() as load:
            load.wait_for_answers(20)
            child.send_signal(signal.SIGSEGV)
            running.event("decoder_ended")
            load.wait_for_answers(20)
        assert load.lost == []
        assert set(load.statuses) <= {200, 422}
        assert load.statuses[422] <= 1
        assert load.answers[-1][1].status_code == 200
        assert client.get("/health/ready").status_code == 200
        assert 'botanify_restarts_total{part="decoder"} 1.0' in client.get("/metrics").text
        assert running.stop() == 0
