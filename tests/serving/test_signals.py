"""Signals to the real program under load: shutdown, reload, and a decoder that crashes."""

import signal
import socket
import time

import psutil
import pytest

from models.bundle import load_bundle
from serving.access.keys import make_key
from tests.serving.load import ClosedLoad, best, point, version_of
from tests.serving.program import PATIENCE_S, ROOT, service
from tests.serving.tiny import WEIGHTS, post
from tests.waiting import wait_until
from training.release import CURRENT, Registry

DEMONSTRATION = ROOT / "models" / "releases" / "garden_and_wild_plants"


@pytest.fixture(scope="module")
def versions(sealed):
    """Two bundles with different weights, and two whose network is broken; one broke after it was sealed."""
    weights = {"1.0.0": WEIGHTS, "2.0.0": -WEIGHTS, "corrupt": WEIGHTS, "not finite": WEIGHTS * float("nan")}
    folders = {name: sealed(name, weights[name]) for name in weights}
    network = folders["corrupt"] / "model.fp32.onnx"
    network.write_bytes(network.read_bytes()[:-1] + b"x")
    return folders


@pytest.fixture
def live(versions, tmp_path):
    """The path of the served bundle, a link to version 1.0.0."""
    link = tmp_path / "live"
    link.symlink_to(versions["1.0.0"])
    return link


def processes_of(pid):
    return psutil.Process(pid).children(recursive=True)


def test_sigterm_under_load_loses_no_request_and_leaves_no_process(live):
    with service(live, "--drain-s", "3") as running, running.client() as probe:
        children = processes_of(running.process.pid)
        assert children
        with ClosedLoad(probe.base_url).running() as load:
            load.wait_for_answers(20)
            running.process.send_signal(signal.SIGTERM)
            running.event("draining")
            while_draining = probe.get("/health/ready")
            assert (while_draining.status_code, while_draining.json()["code"]) == (503, "not_ready")
            assert while_draining.headers["connection"] == "close"
            assert probe.get("/health/live").status_code == 200
            assert post(probe).status_code == 200
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
        running.reload()
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
            wait_until(lambda number=number: sum('"event": "reloaded"' in line for line in running.lines) == number)
            time.sleep(1)  # the old network is freed in a thread
            sizes_mb.append(process.memory_info().rss / 1e6)
        assert sizes_mb[-1] < 1.1 * sizes_mb[0], sizes_mb
        assert running.stop() == 0


def test_sighup_under_load_switches_the_bundle_without_mixing_answers(live, versions):
    with service(live) as running:
        with ClosedLoad(running.url).running() as load:
            load.wait_for_answers(20)
            point(live, versions["2.0.0"])
            running.reload("2.0.0")
            load.wait_for_answers(20)
        assert (load.lost, set(load.statuses)) == ([], {200})
        found = sorted({(version_of(response), best(response)) for _, response in load.answers})
        assert [version for version, _ in found] == ["1.0.0", "2.0.0"]
        assert found[0][1] == "Rosa canina" != found[1][1]
        assert running.stop() == 0


def test_service_follows_the_pointer_of_a_registry(versions, tmp_path):
    registry = Registry(tmp_path / "registry")
    first = registry.promote(load_bundle(versions["1.0.0"]), expected=None)
    with service(registry.folder / CURRENT) as running, running.client() as client:
        registry.promote(load_bundle(versions["2.0.0"]), expected=first)
        assert client.get("/model").json()["version"] == "1.0.0"
        running.reload("2.0.0")
        answer = post(client)
        assert (answer.status_code, version_of(answer)) == (200, "2.0.0")
        registry.roll_back()
        running.reload("1.0.0")
        assert best(post(client)) == "Rosa canina"
        assert running.stop() == 0


@pytest.mark.parametrize(("version", "why"), [("corrupt", "SHA-256"), ("not finite", "not finite")])
def test_bundle_that_cannot_answer_is_refused_at_reload_and_the_old_one_stays(live, versions, version, why):
    with service(live) as running, running.client() as client:
        point(live, versions[version])
        running.process.send_signal(signal.SIGHUP)
        assert why in running.event("reload_refused")["error"]
        response = post(client)
        assert (response.status_code, version_of(response)) == (200, "1.0.0")
        assert 'botanify_reloads_total{outcome="refused"} 1.0' in client.get("/metrics").text
        assert running.stop() == 0


def test_admin_reload_needs_an_admin_key(live, versions):
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
        with ClosedLoad(running.url, num_clients=2).running() as load:
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
