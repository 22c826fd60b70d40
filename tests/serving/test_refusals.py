"""Invalid requests are answered with a problem document, never with a 500."""

import struct
from unittest.mock import Mock

import pytest
import structlog
from PIL import Image

from serving.engine.loaded_bundle import LoadedBundle
from tests.serving.conftest import wait_until_ready
from tests.serving.tiny import FakeNetwork, InProcessDecoder, assert_problem, encode, jpeg, post

# ---- pictures that need too much memory


def progressive_jpeg(mode, megapixels):
    """The start of a JPEG of so many megapixels, whose coefficients the decoder would all keep."""
    data = encode(Image.new(mode, (16, 16)), "JPEG", progressive=True, subsampling=0)
    side = struct.pack(">H", round((megapixels * 1e6) ** 0.5))
    at = data.index(b"\xff\xc2") + 5
    return data[:at] + 2 * side + data[at + 4 : data.index(b"\xff\xda") + 40]


def test_a_picture_may_need_540_megabytes_but_not_800(client):
    granted = assert_problem(post(client, progressive_jpeg("RGB", 88)), 422, "unreadable_image")
    refused = assert_problem(post(client, progressive_jpeg("CMYK", 98)), 422, "unreadable_image")
    assert "memory" not in granted["detail"]  # its pixels are missing
    assert "more memory than one picture may use (expected at most 768 megabytes)" in refused["detail"]


# ---- internal errors


def test_internal_error_is_a_problem_document_without_its_cause(start, monkeypatch):
    client = start()
    with monkeypatch.context() as patch:
        patch.setattr(LoadedBundle, "answer", Mock(side_effect=RuntimeError("secret words")))
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            response = post(client)
    problem = assert_problem(response, 500, "internal")
    assert "secret" not in response.text
    assert [line["event"] for line in lines] == ["internal", "request"]
    assert {line["request_id"] for line in lines} == {problem["request_id"]}
    assert post(client).status_code == 200


def test_request_without_memory_for_it_is_refused_as_overload(start, monkeypatch):
    client = start()
    monkeypatch.setattr(LoadedBundle, "answer", Mock(side_effect=MemoryError))
    response = post(client)
    assert_problem(response, 503, "overloaded")
    assert response.headers["retry-after"] == "1"


def test_service_is_not_ready_while_its_network_fails_and_recovers(start):
    session = FakeNetwork()
    client = start(session=session)
    session.fails = True
    refused = post(client)
    problem = assert_problem(refused, 503, "not_ready")
    assert "secret" not in problem["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    assert_problem(client.get("/health/ready"), 503, "not_ready")
    session.fails = False
    wait_until_ready(client)
    assert post(client).status_code == 200


def test_service_without_decoders_or_in_its_shutdown_is_not_ready_and_still_answers(start, monkeypatch):
    client = start(plantnet_api=True)
    with monkeypatch.context() as patch:
        patch.setattr(InProcessDecoder, "num_alive", 0)
        assert_problem(client.get("/health/ready"), 503, "not_ready")
    client.service.live_bundle.drain()
    assert_problem(client.get("/health/ready"), 503, "not_ready")
    assert client.get("/v2/_status").status_code == 503
    assert post(client).status_code == 200


def test_picture_on_which_the_network_fails_is_unreadable(start):
    session = FakeNetwork()
    client = start(session=session)
    run, fails = session.run, Mock(side_effect=RuntimeError)
    session.run = lambda pixels: (fails if pixels.mean() > 2 else run)(pixels)
    assert_problem(post(client, jpeg((255, 255, 255))), 422, "unreadable_image")
    assert post(client, jpeg((0, 0, 0))).status_code == 200
    assert client.get("/health/ready").status_code == 200


@pytest.mark.parametrize("overflow", [float("nan"), float("inf")])
def test_picture_on_which_the_network_overflows_is_unreadable(start, overflow):
    session = FakeNetwork()
    client = start(session=session)
    for name in ("logit", "feature"):
        setattr(session, name, overflow)
        assert_problem(post(client), 422, "unreadable_image")
        setattr(session, name, 0.0)
    assert post(client).status_code == 200
