"""Reads unusual and hostile bodies: forms, limits, time, memory."""

import asyncio
import base64
import contextlib
import re
import time
import tracemalloc

import pytest

from serving.api.problems import problem_document
from serving.engine.bodies import BodyLimits, read_body
from serving.errors import (
    BadParameter,
    BadPicture,
    ClientLeft,
    MalformedBody,
    NoImage,
    SlowBody,
    TooLarge,
    TooManyImages,
)
from tests.serving.tiny import BOUNDARY, FORM, form, part

RATE = {"upload_s": 60.0, "bytes_per_s": 16_384.0}
LIMITS = BodyLimits(picture_bytes=1_000, request_bytes=3_000, num_pictures=3, **RATE)
LARGE = BodyLimits(picture_bytes=20_000_000, request_bytes=60_000_000, num_pictures=5, **RATE)
MULTIPART = FORM["content-type"]
START = f"--{BOUNDARY}\r\n".encode()
NEXT, END = f"\r\n--{BOUNDARY}\r\n".encode(), f"\r\n--{BOUNDARY}--\r\n".encode()
IMAGE = b'Content-Disposition: form-data; name="image"\r\n'
NOTE = IMAGE.replace(b"image", b"note")
REST = IMAGE + b"\r\npicture" + END
PICTURE = START + IMAGE + b"\r\npicture"


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
    body = form(part("image", tricky, filename="a.jpg"), part("k", b"3"), part("Größe", b"x"), part("image", b"second"))
    result = read(*cut(body, num_bytes))
    assert result.pictures == [tricky, b"second"]
    assert result.fields == {"k": ["3"]}
    assert result.warnings == ["The form field 'Größe' is not known and was ignored."]


@pytest.mark.parametrize(
    "body",
    [
        form(part("image", b"picture", filename='a"b;c.jpg')),
        form(part("image", b"picture", filename="x" * 3_000)),
        form(part("image", b"picture", filename="Gänseblümchen.jpg")),
        START
        + 'Content-Disposition: form-data; name="image"; filename="Gänse.jpg"\r\n\r\n'.encode("latin-1")
        + b"picture"
        + END,
        form(part("image", b"picture", more="Content-Type: image/jpeg; charset=nonsense\r\n")),
        form(part("image", b"picture", more="Content-Length: 7\r\n")),
        START + b"content-disposition:form-data;name=image\r\n\r\npicture" + END,
        START + b"CONTENT-DISPOSITION: form-data; NAME=image\r\n\r\npicture" + END,
        START + b"Content-Type: image/jpeg\r\n" + REST,
        START + b"Content-Disposition: form-data; filename*=utf-8''a%0D%0A; name=\"image\"\r\n\r\npicture" + END,
        b"preamble\r\n" + PICTURE + END,
        b"\r\n" + PICTURE + END,
        PICTURE + END + b"epilogue",
        PICTURE + END[:-2],
    ],
)
def test_unusual_form_is_accepted(body):
    for num_bytes in (1, 100_000):
        assert read(*cut(body, num_bytes), limits=LARGE).pictures == [b"picture"]


@pytest.mark.parametrize(
    "form_type", ["Multipart/Form-Data", " multipart/form-data ", "multipart/form-data; charset=x"]
)
def test_content_type_of_a_form_is_matched_in_any_spelling(form_type):
    assert read(PICTURE + END, content_type=f'{form_type}; BOUNDARY="{BOUNDARY}"').pictures == [b"picture"]


# ---- malformed bodies


def named(name):
    return START + b'Content-Disposition: form-data; name="' + name + b'"\r\n\r\nx' + END


MALFORMED = {
    "nothing": b"",
    "text": b"this is not a form",
    "only line feeds": b"\r\n" * 500,
    "only dashes": b"-" * 500,
    "another boundary": (PICTURE + END).replace(BOUNDARY.encode(), b"other"),
    "boundary and no more": START[:-2],
    "boundaries without their last byte": (PICTURE + END).replace(BOUNDARY.encode(), BOUNDARY.encode()[:-1]),
    "boundaries without their dashes": (PICTURE + END).replace(b"--", b""),
    "byte before the boundary": b"x" + PICTURE + END,
    "byte after the boundary": START[:-2] + b"x\r\n" + REST,
    "space after the boundary": START[:-2] + b" \r\n" + REST,
    "byte after a later boundary": PICTURE + NEXT[:-2] + b"x\r\n" + REST,
    "no end": PICTURE,
    "half of the end": PICTURE + END[:-3],
    "end after one dash": PICTURE + END[:-3] + b"\r\n",
    "end cut in its boundary": PICTURE + END[:8],
    "end in the header": START + IMAGE,
    "end after the header": START + IMAGE + b"\r\n",
    "end in the name": START + IMAGE[:-5],
    "new part and no more": PICTURE + NEXT,
    "line feeds for line ends": (PICTURE + END).replace(b"\r\n", b"\n"),
    "carriage returns for line ends": (PICTURE + END).replace(b"\r\n", b"\r"),
    "line feed after the boundary": START[:-2] + b"\n" + REST,
    "line feed in the header": START + IMAGE[:-2] + b"\n\r\npicture" + END,
    "no header": START + b"\r\npicture" + END,
    "header without a colon": START + b"form-data name=image\r\n\r\npicture" + END,
    "header without a name": START + b": form-data\r\n\r\npicture" + END,
    "header with a bad name": START + b"Content Disposition\0: form-data\r\n\r\npicture" + END,
    "header of zeros": START + bytes(100) + b"\r\n\r\nx" + END,
    "header that begins folded": START + b" folded\r\n" + REST,
    "header folded to nothing": START + IMAGE + b"  \r\n\r\npicture" + END,
    "no content disposition": START + b"Content-Type: image/jpeg\r\n\r\npicture" + END,
    "attachment": START + b"Content-Disposition: attachment; name=image\r\n\r\npicture" + END,
    "empty disposition": START + b"Content-Disposition:\r\n\r\npicture" + END,
    "long header": START + b"X: " + b"a" * 5_000 + b"\r\n" + REST,
    "header without an end": START + b"X" * 100_000,
    "header folded without an end": START + IMAGE + b" a\r\n" * 20_000,
    "nine headers": START + b"X: a\r\n" * 8 + REST,
    "headers without an end": START + b"X: a\r\n" * 20_000,
    "negative length": START + IMAGE + b"Content-Length: -1\r\n\r\npicture" + END,
    "length in words": START + IMAGE + b"Content-Length: seven\r\n\r\npicture" + END,
    "length in other digits": START + IMAGE + "Content-Length: ٧\r\n\r\npicture".encode() + END,
    "two lengths": START + IMAGE + b"Content-Length: 7\r\nContent-Length: 7\r\n\r\npicture" + END,
    "length too short": START + IMAGE + b"Content-Length: 6\r\n\r\npicture" + END,
    "length too long": START + IMAGE + b"Content-Length: 8\r\n\r\npicture" + END,
    "length of thousands of digits": START + IMAGE + b"Content-Length: " + b"9" * 4_050 + b"\r\n\r\npicture" + END,
    "sixty-five parts": form(*(part("note", b"") for _ in range(65))),
    "preamble without an end": b"\r\n" * 50_000,
    "epilogue without an end": PICTURE + END + b"x" * 100_000,
    "many empty parts with long headers": form(*(part("note", b"", filename="x" * 4_000) for _ in range(60))),
}  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_form_is_refused_with_a_short_sentence_in_chunks_of_any_size(body):
    for num_bytes in (13, 100_000):
        with pytest.raises(MalformedBody) as caught:
            read(*cut(body, num_bytes), limits=LARGE)
        assert re.fullmatch(r"[ -~]{20,200}\.", str(caught.value))
    assert problem_document(caught.value.code, "", "").status == 400


@pytest.mark.parametrize(
    "parameters",
    [
        "",
        "; boundary",
        "; boundary=",
        '; boundary=""',
        f"; boundary={'x' * 71}",
        "; boundary=ü",
        '; boundary="a\\',
        "; x=y",
    ],
)
def test_form_without_a_valid_boundary_is_malformed(parameters):
    with pytest.raises(MalformedBody):
        read(PICTURE + END, content_type=f"multipart/form-data{parameters}")


@pytest.mark.parametrize("content_length", ["", "many", "-1", "+5", "5.0", "0x5", " 5", "5,5", "٥", "²"])
def test_content_length_that_is_not_a_number_is_malformed(content_length):
    with pytest.raises(MalformedBody, match="Content-Length"):
        read(b"picture", content_type="image/jpeg", content_length=content_length)


# ---- other refusals


@pytest.mark.parametrize(
    "body",
    [
        form(),
        form(part("k", b"3")),
        PICTURE[2:] + END,
        named(b"images"), named(b"IMAGE"), named(b" image"), named(b"image\0"), named(b"image[]"), named(b""),
        START + b"Content-Disposition: form-data\r\n\r\npicture" + END,
        START + b"Content-Disposition: form-data; name*=utf-8''image\r\n\r\npicture" + END,
        START + b"Content-Disposition: form-data; filename=image\r\n\r\npicture" + END,
    ],
)  # fmt: skip
def test_form_without_a_picture_is_no_image(body):
    with pytest.raises(NoImage):
        read(body)


NOT_USED, NAMED = part("image", b"", filename=""), part("image", b"", filename="a.jpg")  # empty


def test_a_file_input_or_field_that_nobody_used_is_not_sent():
    pictures = [part("image", b"%d" % number, filename="a.jpg") for number in range(3)]
    empty = part("image", b"")
    found = read(form(NOT_USED, *pictures, NOT_USED, empty))
    assert found.pictures == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("parts", "index"),
    [
        ([NOT_USED], 0),
        ([part("image", b""), NOT_USED], 0),
        ([NAMED], 0),
        ([NOT_USED, part("image", b"picture"), NAMED], 1),
    ],
)
def test_a_form_of_empty_pictures_and_a_file_without_bytes_are_no_image(parts, index):
    with pytest.raises(NoImage, match=r"the field `image` is empty \(got 0 bytes\)") as caught:
        read(form(*parts))
    assert caught.value.index == index


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["file", "k", "image[]", "file", "\u202e" + "x" * 50], "the fields k, file, image[], \\u202e" + "x" * 39),
        ("abcdefg", "the fields a, b, c, d, e and 2 more"),
        ([], "no fields"),
    ],
)
def test_a_form_without_the_field_of_pictures_is_told_the_names_that_came(names, told):
    with pytest.raises(NoImage) as caught:
        read(form(*(part(name, b"3") for name in names)), limits=LARGE)
    assert str(caught.value).startswith(f"the form has no field `image` (got {told}): send")


JPEG_IN_BASE64 = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(range(100)))
SENT_AS_TEXT = {
    "JSON": [
        b'{"images": ["/9j/4AAQ"]}',
        b'\xef\xbb\xbf \r\n[{"url": "x"}]',
        b"[255, 216, 255]",
        b'{"url": "https://x/a.jpg"}',
    ],
    "a data: URL": [b"data:image/jpeg;base64," + JPEG_IN_BASE64],
    "base64": [JPEG_IN_BASE64, base64.urlsafe_b64encode(bytes(range(200, 256)) * 3), base64.encodebytes(bytes(90))],
    "the address of a picture": [b"https://example.org/a.jpg", b"s3://bucket/a.jpg"],
    "a URL-encoded form": [b"image=https%3A%2F%2Fx%2Fa.jpg&k=5", b"images%5B%5D=abc"],
    "a form": [PICTURE + END],
}


@pytest.mark.parametrize(
    ("what", "sent"), [(what, sent) for what, all_sent in SENT_AS_TEXT.items() for sent in all_sent]
)
def test_a_text_in_place_of_a_picture_is_told_what_it_is_and_what_to_do(what, sent):
    remedies = set()
    bodies = {"application/json": (sent, 0)}
    if what != "a form":
        bodies[MULTIPART] = (form(part("image", b"picture"), part("image", sent)), 1)
    for content_type, (body, index) in bodies.items():
        with pytest.raises(BadPicture, match=rf"got {what}; expected JPEG, PNG, WebP, HEIC or AVIF\): \w+") as caught:
            read(body, content_type=content_type)
        assert (caught.value.reason.code, caught.value.index) == ("unsupported_format", index)
        remedies.add(caught.value.remedy)
    assert len(remedies) == 1
    assert "{" not in remedies.pop()


@pytest.mark.parametrize("text", [b"a rose", b"[object File]", b"A" * 39, b"GIF89a" + bytes(40), b"{\\rtf1"])
def test_what_may_be_a_picture_is_left_to_the_decoder(text):
    assert read(text, content_type="image/jpeg").pictures == [text]


@pytest.mark.parametrize(("coding", "is_taken"), [("Base64", False), ("quoted-printable", False), ("binary", True)])
def test_a_part_in_a_transfer_encoding_is_refused(coding, is_taken):
    body = form(part("image", b"picture", more=f"Content-Transfer-Encoding: {coding}\r\n"))
    refused = pytest.raises(BadPicture, match=f"got Content-Transfer-Encoding: {coding.lower()}; expected binary")
    with contextlib.nullcontext() if is_taken else refused:
        assert read(body).pictures == [b"picture"]


def test_one_picture_too_many_is_refused_at_its_first_byte():
    with pytest.raises(TooManyImages, match="at most 3"):
        read(START + IMAGE + b"\r\nx", *[NEXT + IMAGE + b"\r\nx"] * 3, then_disconnects=True)


@pytest.mark.parametrize(
    ("chunks", "content_type", "index"),
    [
        ([bytes(1_001)], "image/jpeg", None),
        ([bytes(500)] * 1_000, "image/jpeg", None),
        ([form(part("image", b"x"), part("image", bytes(1_001)))], MULTIPART, 1),
        ([form(*(part(name, bytes(999)) for name in ("image", "note", "image", "note")))], MULTIPART, None),
        ([form(part("note", bytes(3_001)))], MULTIPART, None),
    ],
)  # fmt: skip
def test_too_many_bytes_are_too_large(chunks, content_type, index):
    with pytest.raises(TooLarge) as caught:
        read(*chunks, content_type=content_type)
    assert caught.value.index == index


@pytest.mark.parametrize("content_type", [MULTIPART, "image/jpeg"])
def test_as_many_bytes_as_allowed_are_taken(content_type):
    data = form(part("image", bytes(1_000))) if content_type == MULTIPART else bytes(1_000)
    assert read(data, content_type=content_type, content_length=str(len(data))).pictures == [bytes(1_000)]


@pytest.mark.parametrize("content_length", ["1001", "0" * 30 + "1001", "9" * 5_000])
def test_declared_length_over_the_limit_is_too_large_before_anything_is_read(content_length):
    with pytest.raises(TooLarge):
        read(content_type="image/jpeg", content_length=content_length, then_disconnects=True)


def test_declared_length_is_not_trusted():
    with pytest.raises(TooLarge):
        read(bytes(600), bytes(600), content_type="image/jpeg", content_length="10")


def test_field_k_that_is_too_long_is_a_bad_parameter():
    with pytest.raises(BadParameter):
        read(START + b'Content-Disposition: form-data; name="k"\r\n\r\n', b"1" * 65, then_disconnects=True)


@pytest.mark.parametrize("chunks", [[], [PICTURE], [START], [PICTURE + END]])
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


@pytest.mark.parametrize(
    "hostile",
    [
        START + IMAGE + b" a\r\n" * 2_000_000,
        b"".join(START + b"X: a\r\n" + b" a\r\n" * 1_000 + NOTE + b"\r\nx\r\n" for _ in range(60)) + END,
        START + IMAGE + b"\r\n" + END[:-4] * 100_000 + END,
        START + IMAGE + b"\r\n" + b"\r" * 5_000_000 + END,
        b"\r\n-" * 2_000_000 + PICTURE + END,
        PICTURE + END + START * 200_000,
        form(*(part("note", b"", more="Content-Type: a" + '; a="\\' * 600 + "\r\n") for _ in range(60))),
    ],
    ids=["folds", "folds in many parts", "nearly boundaries", "carriage returns", "preamble", "epilogue", "options"],
)  # fmt: skip
def test_hostile_form_is_parsed_in_seconds(hostile):
    start = time.process_time()
    with contextlib.suppress(MalformedBody):
        read(*cut(hostile, 65_536), limits=LARGE)
    assert time.process_time() - start < 10
