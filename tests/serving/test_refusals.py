"""Invalid requests are answered with a problem document, never with a 500."""

import gzip
import struct
from unittest.mock import Mock

import pytest
import structlog
from PIL import Image

from serving.engine.loaded_bundle import LoadedBundle
from serving.schemas import Parameters
from tests.models.pictures import claiming_size, png
from tests.serving.conftest import wait_until_ready
from tests.serving.tiny import FakeNetwork, assert_problem, encode, jpeg, post

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


# ---- files that are not pictures


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"just some text", 415, "unsupported_format"),
        (jpeg(size=(300, 300))[:500], 422, "unreadable_image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(50), 422, "unreadable_image"),
        (png((100, 100), 8, 2, []), 422, "unreadable_image"),
    ],
    ids=["text", "JPEG", "HEIC", "PNG without pixels"],
)
def test_what_is_no_whole_picture_is_refused_at_its_place(client, data, status, code):
    assert assert_problem(post(client, data), status, code)["index"] == 0


def test_too_many_pixels_are_refused_with_the_limit(client):
    problem = assert_problem(post(client, claiming_size("PNG", (10_000, 10_000))), 422, "too_many_pixels")
    assert "100.0 megapixels" in problem["detail"]
    assert "at most 64 megapixels" in problem["detail"]


def test_one_bad_picture_fails_the_request_and_its_index_is_given(client):
    refused = post(client, jpeg(), jpeg(), b"text", jpeg())
    assert assert_problem(refused, 415, "unsupported_format")["index"] == 2


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "gzip, identity"])
def test_a_compressed_body_is_told_to_come_as_it_is(client, coding):
    response = client.post("/identify", content=gzip.compress(jpeg()), headers={"Content-Encoding": coding})
    problem = assert_problem(response, 415, "unsupported_format")
    assert problem["detail"].startswith(f"The body is compressed (got Content-Encoding: {coding}; expected no")
    assert response.headers["Accept-Encoding"] == "identity"
    assert post(client, headers={"Content-Encoding": "Identity"}).status_code == 200


def test_fields_of_a_form_or_query_that_nobody_filled_in_count_as_not_sent(client):
    empty = dict.fromkeys(Parameters.__struct_fields__, "")
    files = [("image", ("a.jpg", jpeg())), *((name, (None, "")) for name in empty), ("taxa", (None, "Rosa"))]
    answer = client.post("/identify", files=files, params=empty)
    assert answer.status_code == 200, answer.text
    assert {each["genus"] for each in answer.json()["predictions"]} == {"Rosa"}
    assert client.get("/species", params={"q": "", "limit": "", "lang": ""}).status_code == 200


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
