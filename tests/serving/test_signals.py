"""Signals to the real program under load: shutdown, reload, and a decoder that crashes."""

import signal
import socket
import time

import psutil
import pytest

from models.bundle import load_bundle
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


def processes_of(pid):
    return psutil.Process(pid).children(recursive=True)


def test_sigterm_under_load_loses_no_request_and_leaves_no_process(bundle_folder):
    with service(bundle_folder, "--drain-s", "3") as running, running.client() as probe:
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


def test_second_sigterm_ends_the_process_at_once(bundle_folder):
    with (
        service(bundle_folder, "--drain-s", "60", "--shutdown-s", "90") as running,
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


@pytest.fixture(scope="module")
def running(versions, tmp_path_factory):
    """A service of the link `live`, which leads to version 1.0.0 and is read anew on a signal."""
    live = tmp_path_factory.mktemp("live") / "live"
    live.symlink_to(versions["1.0.0"])
    with service(live, "--num-decoders", "1") as running:
        running.live = live
        yield running
        assert running.stop() == 0


def test_bundle_that_cannot_answer_is_refused_at_reload_and_the_old_one_stays(running, versions):
    for number, (version, why) in enumerate({"corrupt": "SHA-256", "not finite": "not finite"}.items(), 1):
        point(running.live, versions[version])
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: sum("reload_refused" in line for line in running.lines) == number)  # noqa: B023
        assert why in next(line for line in reversed(running.lines) if "reload_refused" in line)
    with running.client() as client:
        response = post(client)
        assert (response.status_code, version_of(response)) == (200, "1.0.0")
        wait_until(lambda: 'botanify_reloads_total{outcome="refused"} 2.0' in client.get("/metrics").text)


def test_reloads_under_load_follow_the_pointer_of_a_registry_without_mixing_answers(running, versions, tmp_path):
    registry = Registry(tmp_path / "registry")
    first = registry.promote(load_bundle(versions["1.0.0"]), expected=None)
    point(running.live, registry.folder / CURRENT)
    with ClosedLoad(running.url).running() as load:
        load.wait_for_answers(20)
        registry.promote(load_bundle(versions["2.0.0"]), expected=first)
        running.reload("2.0.0")
        load.wait_for_answers(20)
        registry.roll_back()
        running.reload("1.0.0")
        load.wait_for_answers(20)
    assert (load.lost, set(load.statuses)) == ([], {200})
    found = sorted({(version_of(response), best(response)) for _, response in load.answers})
    assert [version for version, _ in found] == ["1.0.0", "2.0.0"]
    assert found[0][1] == "Rosa canina" != found[1][1]
    assert version_of(load.answers[-1][1]) == "1.0.0"


def test_crashed_decoder_fails_at_most_one_request(running):
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
    with running.client() as client:
        assert client.get("/health/ready").status_code == 200
        wait_until(lambda: 'botanify_restarts_total{part="decoder"} 1.0' in client.get("/metrics").text)
