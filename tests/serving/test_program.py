"""The program in a process of its own: requests, signals, exit codes, start-up errors."""

import json
import re
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import onnxruntime
import pytest
from msgspec.structs import replace

from models.bundle import load_bundle, seal_bundle
from models.errors import InputError
from models.preprocess import InputSpec
from serving.app import create_app
from serving.settings import Settings
from tests.serving.conftest import failure_of_start
from tests.serving.program import PATIENCE_S, ROOT, assert_one_clear_line, run, service
from tests.serving.raw_http import receive_all
from tests.serving.tiny import TAXONOMY, identify, jpeg, post, write_network
from tests.waiting import wait_until

# ---- start, answer, shutdown


def test_service_answers_and_ends_cleanly_on_sigterm(bundle_folder):
    with service(bundle_folder) as running:
        with running.client() as client:
            response = post(client, headers={"x-request-id": "wire-1"})
            assert response.status_code == 200
            assert client.get("/").text.startswith("<!DOCTYPE html>")
            assert client.head("/model").headers["content-length"] == client.get("/model").headers["content-length"]
        assert running.stop(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in running.lines]  # every line is JSON, since standard error is not a terminal
    assert {"listening", "ready", "request", "draining"} == {line["event"] for line in lines}
    (identify,) = [line for line in lines if line.get("route") == "/identify"]
    assert (identify["request_id"], identify["status"], identify["level"]) == ("wire-1", 200, "info")


def test_openvino_answers_as_onnx_runtime_does(client, bundle_folder, tmp_path):
    pytest.importorskip("openvino", reason="OpenVINO is not installed: the extra serve-openvino")
    with service(bundle_folder, "--provider", "openvino", HOME=str(tmp_path)) as running, running.client() as other:
        with ThreadPoolExecutor(4) as pool:
            found = [answer["predictions"] for answer in pool.map(lambda _: identify(other), range(12))]
        cards = [each.get("/model").json() for each in (client, other)]
    expected = [(each["taxon_id"], pytest.approx(each["score"], abs=1e-4)) for each in identify(client)["predictions"]]
    for predictions in found:
        assert [(each["taxon_id"], each["score"]) for each in predictions] == expected
    assert [(card["precision"], "OpenVINO" in card["providers"]) for card in cards] == [("fp32", False), ("fp32", True)]
    assert list(tmp_path.iterdir()) == []


def test_request_in_progress_is_answered_before_the_service_exits(bundle_folder):
    picture = jpeg()
    with service(bundle_folder) as running, socket.create_connection(running.address()) as connection:
        head = (
            f"POST /identify HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
        )
        connection.sendall(head.encode() + picture[:50])
        time.sleep(0.3)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.sendall(picture[50:])
        assert receive_all(connection).startswith(b"HTTP/1.1 200")
        assert running.process.wait(PATIENCE_S) == 0


# ---- connections


@pytest.fixture(scope="module")
def wire(bundle_folder):
    with service(bundle_folder, "--upload-s", "1") as running:
        yield running
        assert running.stop() == 0
    assert not [line for line in running.lines if "Traceback" in line or '"error"' in line]


def test_large_upload_sent_anyway_is_refused_and_takes_no_memory(wire):
    def peak_mb():
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{wire.process.pid}/status").read_text())[1]) / 1000

    before = peak_mb()
    response = httpx2.post(f"{wire.url}/identify", content=bytes(40_000_000), headers={"content-type": "image/jpeg"})
    assert response.status_code == 413
    assert response.json()["code"] == "too_large"
    assert peak_mb() - before < 15


def test_slow_upload_is_refused_and_its_connection_closed(wire):
    with socket.create_connection(wire.address()) as connection:
        connection.sendall(b"POST /identify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
        answer = receive_all(connection)  # until the connection is closed
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"slow_body"' in answer


def test_client_that_disconnects_is_not_logged_as_an_error(wire):
    with socket.create_connection(wire.address()) as connection:
        head = b"POST /identify HTTP/1.1\r\nHost: x\r\nX-Request-ID: gone\r\nContent-Length: 1000\r\n\r\nabc"
        connection.sendall(head)
        time.sleep(0.2)
    line = wire.event("request", request_id="gone")
    assert (line["status"], line["code"], line["level"]) == (499, "client_left", "info")


def test_bytes_that_are_not_http_are_counted_and_the_service_stays_ready(wire):
    with socket.create_connection(wire.address()) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 400")
    assert httpx2.get(f"{wire.url}/health/ready").status_code == 200
    counted = 'botanify_refusals_total{code="bad_request"} 1.0'
    wait_until(lambda: counted in httpx2.get(f"{wire.url}/metrics").text)


# ---- start-up errors


def test_damaged_bundle_is_refused(bundle_folder, tmp_path):
    damaged = shutil.copytree(bundle_folder, tmp_path / "damaged")
    network = damaged / "model.fp32.onnx"
    data = bytearray(network.read_bytes())
    data[len(data) // 2] ^= 1
    network.write_bytes(data)
    with pytest.raises(InputError, match=r"the SHA-256 of model\.fp32\.onnx differs"):
        create_app(Settings(bundle=damaged))


def test_network_of_another_input_is_refused(bundle_folder, tmp_path):
    record = replace(load_bundle(bundle_folder).record, input=InputSpec(height=64, width=64, train_px=64))
    seal_bundle(tmp_path / "bad", record, TAXONOMY, {"model.fp32.onnx": bundle_folder / "model.fp32.onnx"})
    assert {"32", "64"} <= set(re.findall(r"\d+", failure_of_start(bundle=tmp_path / "bad")))


def test_network_that_does_not_run_is_one_clear_line(bundle_folder, tmp_path):
    network = tmp_path / "model.fp32.onnx"
    write_network(network, sides=("height", "width"), pool=False)
    seal_bundle(tmp_path / "bad", load_bundle(bundle_folder).record, TAXONOMY, {network.name: network})
    assert_one_clear_line(run("--bundle", tmp_path / "bad", "--port", 0), "the network does not run", "MatMul")


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this ONNX Runtime is built for CUDA"
)
def test_a_device_that_is_not_there_is_refused_with_what_helps(bundle_folder):
    words = "CUDA", "onnxruntime-gpu", "--provider cpu"
    assert_one_clear_line(run("--bundle", bundle_folder, "--provider", "cuda"), *words)


# ---- imports


def test_program_starts_as_a_file_from_anywhere(tmp_path):
    process = run("--help", cwd=tmp_path, program=[str(ROOT / "serving" / "__main__.py")])
    assert process.returncode == 0
    assert "--max-picture-bytes" in process.stdout


def test_service_never_loads_torch(bundle_folder):
    code = (
        "import sys, serving.__main__\n"
        "from pathlib import Path\n"
        "from serving.app import create_app\n"
        "from serving.settings import Settings\n"
        "create_app(Settings(bundle=Path(sys.argv[1])))\n"
        "print(*sys.modules)"
    )
    process = run(bundle_folder, program=["-W", "error", "-c", code])
    assert process.returncode == 0, process.stderr
    loaded = {name.split(".")[0] for name in process.stdout.split()}
    assert "onnxruntime" in loaded
    assert not loaded & {"torch", "torchvision", "timm", "training", "onnx", "scipy", "pandas"}
