"""Reads unusual and hostile bodies: forms, limits, time, memory."""

import asyncio
import contextlib
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from models.errors import BotanifyError
from serving.api.problems import problem_document
from serving.engine.bodies import BodyLimits, read_body
from serving.errors import BadPicture, ClientLeft, MalformedBody, SlowBody, TooLarge
from tests.serving.tiny import BOUNDARY, FORM, form, part, spelled

RATE = {"upload_s": 60.0, "bytes_per_s": 16_384.0}
LIMITS = BodyLimits(picture_bytes=1_000, request_bytes=3_000, num_pictures=3, **RATE)
LARGE = BodyLimits(picture_bytes=20_000_000, request_bytes=60_000_000, num_pictures=5, **RATE)
MULTIPART = FORM["content-type"]
PARTS = {
    "PICTURE": "<START><IMAGE>\r\npicture",
    "REST": "<IMAGE>\r\npicture<END>",
    "START": f"--{BOUNDARY}\r\n",
    "NEXT": f"\r\n--{BOUNDARY}\r\n",
    "END": f"\r\n--{BOUNDARY}--\r\n",
    "IMAGE": 'Content-Disposition: form-data; name="image"\r\n',
    "NOTE": 'Content-Disposition: form-data; name="note"\r\n',
}
TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


PICTURE, START = spelled(["<PICTURE>"], PARTS), spelled(["<START>"], PARTS)


def cut(body, num_bytes):
    return [body[at : at + num_bytes] for at in range(0, len(body), num_bytes)]


def read(*chunks, content_type=MULTIPART, content_length=None, limits=LIMITS, pause_s=0.0, then_disconnects=False):
    """Reads a body that arrives in these chunks."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.disconnect"} if then_disconnects else {"type": "http.request", "body": b""})

    async def receive():
        if pause_s:
            await asyncio.sleep(pause_s)
        return messages.pop(0)

    return asyncio.run(read_body(content_type, content_length, receive, limits))


# ---- accepted bodies


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 7, 64, 100_000])
def test_form_is_read_the_same_in_chunks_of_any_size(num_bytes):
    tricky = b"\r\n--" + BOUNDARY.encode()[:-1] + b"\r\r\n-" + bytes(range(256))
    unused, empty = part("image", b"", filename=""), part("image", b"")
    parts = part("image", tricky, filename="a.jpg"), unused, part("k", b"3"), part("Größe", b"x")
    more = part("image", b"second"), part("image", b"third"), unused, empty
    result = read(*cut(form(*parts, *more), num_bytes))
    assert result.pictures == [tricky, b"second", b"third"]  # as many as the limits allow
    assert result.fields == {"k": ["3"]}
    assert result.warnings == ["The form field 'Größe' is not known and was ignored."]


@pytest.mark.parametrize("body", [spelled(pieces, PARTS) for pieces in TABLE["accepted"]])
def test_unusual_form_is_accepted(body):
    for num_bytes in (1, 100_000):
        assert read(*cut(body, num_bytes), limits=LARGE).pictures == [b"picture"]


@pytest.mark.parametrize(
    "form_type", ["Multipart/Form-Data", " multipart/form-data ", "multipart/form-data; charset=x"]
)
def test_content_type_of_a_form_is_matched_in_any_spelling(form_type):
    body = spelled(["<PICTURE><END>"], PARTS)
    assert read(body, content_type=f'{form_type}; BOUNDARY="{BOUNDARY}"').pictures == [b"picture"]


@pytest.mark.parametrize("text", [b"a rose", b"[object File]", b"A" * 39, b"GIF89a" + bytes(40), b"{\\rtf1"])
def test_what_may_be_a_picture_is_left_to_the_decoder(text):
    assert read(text, content_type="image/jpeg").pictures == [text]


@pytest.mark.parametrize("content_type", [MULTIPART, "image/jpeg"])
def test_as_many_bytes_as_allowed_are_taken(content_type):
    binary = "Content-Transfer-Encoding: binary\r\n"
    data = form(part("image", bytes(1_000), more=binary)) if content_type == MULTIPART else bytes(1_000)
    assert read(data, content_type=content_type, content_length=str(len(data))).pictures == [bytes(1_000)]


# ---- refused bodies


@pytest.mark.parametrize("row", TABLE["refused"], ids=lambda row: row["fact"])
def test_a_body_is_refused_with_the_stored_sentence_in_chunks_of_any_size(row):
    options = {"content_type": row.get("type", MULTIPART), "content_length": row.get("length")}
    for num_bytes in (13, 100_000):
        with pytest.raises(BotanifyError) as caught:
            read(*cut(spelled(row["body"], PARTS), num_bytes), limits=LARGE if row.get("large") else LIMITS, **options)
        error = caught.value
        code = error.reason.code if isinstance(error, BadPicture) else error.code
        assert (code, str(error), error.index) == (row["code"], row["says"], row.get("index"))


@pytest.mark.parametrize(("body", "length"), [(["<START><IMAGE>\r\n", ["x", 1_001]], None), ([], "3001")])
def test_a_body_over_the_limit_is_refused_before_its_rest_arrives(body, length):
    with pytest.raises(TooLarge):
        read(spelled(body, PARTS), content_length=length, then_disconnects=True)


@pytest.mark.parametrize("chunks", [[], [PICTURE], [START], [spelled(["<PICTURE><END>"], PARTS)]])
@pytest.mark.parametrize("content_type", [MULTIPART, "image/jpeg"])
def test_disconnect_anywhere_in_the_body_raises_client_left(chunks, content_type):
    with pytest.raises(ClientLeft):
        read(*chunks, content_type=content_type, then_disconnects=True)


# ---- time


def seconds_to_refusal(limits, chunk, pause_s):
    start = time.monotonic()
    with pytest.raises(SlowBody) as caught:
        read(*[chunk] * 1_000, content_type="image/jpeg", limits=limits, pause_s=pause_s)
    assert problem_document(caught.value.code, "", "").status == 408
    return time.monotonic() - start


def slow(**changes):
    return BodyLimits(1_000_000, 3_000_000, 3, **{"upload_s": 30.0, "bytes_per_s": 1_000.0, "grace_s": 0.2, **changes})


def test_trickling_body_is_refused_as_soon_as_it_is_below_the_rate():
    assert 0.15 < seconds_to_refusal(slow(), b"x", 0.01) < 5  # the whole body would take 10


def test_stalled_body_is_refused_when_its_average_is_below_the_rate():
    start = time.monotonic()
    messages = [{"type": "http.request", "body": bytes(600), "more_body": True}]

    async def receive():
        if not messages:
            await asyncio.sleep(60)
        return messages.pop()

    with pytest.raises(SlowBody):
        asyncio.run(read_body("image/jpeg", None, receive, slow()))
    assert 0.7 < time.monotonic() - start < 25  # the limit of the upload is 30


def test_body_at_the_rate_is_accepted():
    assert len(read(*[bytes(2_000)] * 20, content_type="image/jpeg", limits=slow(), pause_s=0.03).pictures[0]) == 40_000


def test_no_body_takes_longer_than_the_upload_limit():
    assert 0.4 < seconds_to_refusal(slow(upload_s=0.5), bytes(800), 0.02) < 1.2
    assert 0.4 < seconds_to_refusal(slow(upload_s=0.5, grace_s=5.0), b"x", 0.02) < 1.2


# ---- cost


@pytest.mark.slow
@pytest.mark.parametrize("content_type", ["image/jpeg", MULTIPART])
def test_tiny_chunks_take_no_more_memory_than_their_bytes(content_type):
    picture = bytes(100_000)
    body = picture if content_type == "image/jpeg" else form(part("image", picture))
    chunks = iter(cut(body, 2))  # a list of them would take thirty times as much memory

    async def receive():
        for chunk in chunks:
            return {"type": "http.request", "body": chunk, "more_body": True}
        return {"type": "http.request"}

    async def measure():
        tracemalloc.start()
        try:
            result = await read_body(content_type, None, receive, LARGE)
            return result.pictures, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    pictures, peak_bytes = asyncio.run(measure())
    assert pictures == [picture]
    assert peak_bytes < 2 * len(picture)


@pytest.mark.parametrize("hostile", TABLE["hostile"])
def test_hostile_form_is_parsed_in_seconds(hostile):
    body = spelled(TABLE["hostile"][hostile], PARTS)
    start = time.process_time()
    with contextlib.suppress(MalformedBody):
        read(*cut(body, 65_536), limits=LARGE)
    assert time.process_time() - start < 10
