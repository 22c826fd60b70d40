"""Reads the body of an identify request, multipart/form-data or one raw picture, into pictures and fields.

Limits apply while the bytes stream in, and nothing is written to disk. File names and content types of parts are
ignored: the picture decoder detects the format from the bytes. A part in a transfer encoding such as base64, which
RFC 7578 (section 4.7) deprecates, is refused, and so is a text in place of a picture.
"""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header  # type: ignore[import-untyped]

from models.errors import UnsupportedFormat, some_of
from models.file_structure import SUPPORTED_FORMATS
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
from serving.schemas import Parameters, field_bytes

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

_MAX_PARTS: Final = 64
_MAX_BOUNDARY_LENGTH: Final = 70  # RFC 2046, section 5.1.1
_MAX_WARNINGS: Final = 10
_ANY_BYTES: Final = "latin-1"  # decodes every file name; the names of fields are read as UTF-8 afterwards
# Boundaries, headers, preamble and epilogue of a form; 64 ordinary parts take a third of it. Without this limit a
# preamble could be endless, and folded headers cost the parser 300 times as much as content.
_MAX_OVERHEAD_BYTES: Final = 65_536
_PIECE_BYTES: Final = 262_144
_MAX_NAMED: Final = 5  # fields that an error names
_START_BYTES: Final = 256  # of a picture, in which a text is looked for
_DECODE: Final = "decode the base64, and send the bytes"
_TEXTS: Final = (
    (
        rb"[\[{]\s*[\"\[{\]}\d-]",
        "JSON",
        "send the bytes of the picture in the form field `{image}`, or as the whole body, since this service "
        "reads neither JSON nor base64, and fetches no addresses",
    ),
    (rb"data:", "a data: URL", _DECODE),
    (
        rb"[a-z][a-z0-9+.-]{1,9}://",
        "the address of a picture",
        "send the bytes of the picture, since this service fetches none",
    ),
    (
        rb"--\S+\r?\ncontent-disposition:",
        "a form",
        "let your HTTP library set the header Content-Type to multipart/form-data",
    ),
    (
        rb"[\w.%+\[\]-]{1,40}=[^=]",
        "a URL-encoded form",
        "send the picture in the form field `{image}` of multipart/form-data",
    ),
    (rb"[a-z0-9+/_\r\n-]{40}", "base64", _DECODE),
)
"""How a text begins that clients send in place of a picture, what it is, and what to do."""
_TIMEOUT_STEP_S: Final = 0.1  # the timeout moves in steps of this size, so that tiny chunks do not each move it


class BodyLimits(msgspec.Struct, frozen=True):
    """Largest size and slowest rate of a body.

    After `grace_s`, a body is refused as soon as its average rate falls below `bytes_per_s`. No body may take longer
    than `upload_s`.
    """

    picture_bytes: int
    request_bytes: int
    num_pictures: int
    upload_s: float
    """Longest time for the whole body, seconds."""
    bytes_per_s: float = 16_384
    """Least average rate, bytes per second; a slow mobile connection is four times as fast."""
    grace_s: float = 5.0
    """Time that does not count towards the rate, seconds."""

    def time_limit_s(self, num_bytes: int) -> float:
        """Returns the time limit of a body of which `num_bytes` have arrived, seconds from its start."""
        return min(self.upload_s, self.grace_s + num_bytes / self.bytes_per_s)


class FormNames(NamedTuple):
    """The names of the fields of a form."""

    image: str = "image"
    parameters: Mapping[str, int] = field_bytes(Parameters)
    """Name of each parameter -> longest value, bytes."""
    needs_image: bool = True

    def no_image(self, problem: str, **details: Any) -> NoImage:
        """Returns the error of a request without a picture."""
        remedy = f"send the original photograph in the form field `{self.image}`, or as the whole body"
        return NoImage(problem, remedy=remedy, **details)


class Body(msgspec.Struct, frozen=True):
    """The content of a body."""

    pictures: list[bytes]
    """At least one, unless the form may have none; none is empty."""
    fields: dict[str, list[str]]
    """The parameters in the form: name -> values in order, unparsed."""
    warnings: list[str]


async def read_body(
    content_type: str,
    content_length: str | None,
    receive: Receive,
    limits: BodyLimits,
    names: FormNames = FormNames(),  # noqa: B008  # it is frozen
) -> Body:
    """Reads the body of a request.

    Every content type but multipart/form-data counts as one picture. A Content-Length over the limit is refused before
    anything is read.

    Raises:
        NoImage: No picture, or an empty one.
        MalformedBody: The form is incomplete, or a header is wrong.
        SlowBody: The body did not arrive in time, or not fast enough.
        TooLarge: More bytes than allowed, in total or in one picture.
        TooManyImages: More pictures than allowed.
        BadParameter: A field is longer than any valid value.
        ClientLeft: The client disconnected.
    """
    kind, options = parse_options_header(content_type)
    is_form = kind == "multipart/form-data"
    boundary = options.get("boundary", "")
    what, max_bytes = ("request", limits.request_bytes) if is_form else ("picture", limits.picture_bytes)
    _check_content_length(content_length, max_bytes, what)
    try:
        async with asyncio.timeout(limits.time_limit_s(0)) as upload_timeout:
            chunks = _chunks(receive, what, max_bytes, limits, upload_timeout)
            return await (_read_form(boundary, chunks, limits, names) if is_form else _read_raw(chunks, names))
    except TimeoutError:
        kb_per_s = limits.bytes_per_s / 1e3
        raise SlowBody(
            "the body arrives too slowly",
            limit=f"at least {kb_per_s:g} kB per second and at most {limits.upload_s:g} seconds in total",
            remedy="send smaller pictures or use a faster connection",
        ) from None


async def _read_raw(chunks: AsyncIterator[bytes], names: FormNames) -> Body:
    content = _Content()
    async for chunk in chunks:
        content.write(chunk)
    picture = content.getvalue()
    if not picture:
        raise names.no_image("the request has no body")
    _require_no_text(picture, names, 0)
    return Body([picture], {}, [])


async def _read_form(boundary: str, chunks: AsyncIterator[bytes], limits: BodyLimits, names: FormNames) -> Body:
    form = _Form(limits, names)
    try:
        with _parser(boundary) as parser:
            async for chunk in chunks:
                form.feed(parser.parse(chunk), len(chunk))
    except MultipartError as error:
        raise MalformedBody(
            "the body is not a complete multipart form",
            value=error.args[0],  # args[1] contains bytes of the body
            remedy="send multipart/form-data as in RFC 7578",
        ) from error
    return form.body()


def _parser(boundary: str) -> PushMultipartParser:
    if not 0 < len(boundary) <= _MAX_BOUNDARY_LENGTH:
        raise MalformedBody(
            "the content type has no valid boundary",
            value=f"{len(boundary)} characters",
            limit=f"1 to {_MAX_BOUNDARY_LENGTH}",
            remedy="let your HTTP library set the header Content-Type",
        )
    return PushMultipartParser(boundary, header_charset=_ANY_BYTES)


class _Content:
    """Collects the bytes of one picture or field.

    It joins small chunks into pieces, since a client can send any number of tiny ones. A single growing buffer would be
    copied as it grows, which took 3 ms for a photograph of 3 MB.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._newest = io.BytesIO()

    def write(self, chunk: bytes | bytearray) -> None:
        """Appends a chunk."""
        self._newest.write(chunk)
        if self._newest.tell() >= _PIECE_BYTES:
            self._pieces.append(self._newest.getvalue())
            self._newest = io.BytesIO()

    def getvalue(self) -> bytes:
        """Returns all bytes."""
        return b"".join([*self._pieces, self._newest.getvalue()])


class _Form:
    """Collects a multipart form from the parser's events."""

    def __init__(self, limits: BodyLimits, names: FormNames) -> None:
        self._limits = limits
        self._names = names
        self._pictures: list[bytes] = []
        self._fields: dict[str, list[str]] = {}
        self._unknown: list[str] = []
        self._num_parts = self._num_overhead_bytes = 0
        self._name = ""
        self._has_file = self._has_empty_input = False
        self._content = _Content()
        self._num_bytes = 0

    def feed(self, events: Iterable[MultipartSegment | bytes | bytearray | None], num_bytes: int) -> None:
        """Handles the parser's events for a chunk of `num_bytes`.

        An event is the header of a part, some bytes of its content, or None at its end.
        """
        for event in events:
            if event is None:
                self._end_part()
            elif isinstance(event, MultipartSegment):
                self._begin_part(event)
            else:
                self._add(event)
        self._num_overhead_bytes += num_bytes  # `_add` has subtracted the content
        if self._num_overhead_bytes > _MAX_OVERHEAD_BYTES:
            raise MalformedBody(
                "the form has too much data outside of its fields",
                limit=f"at most {_MAX_OVERHEAD_BYTES} bytes of headers, preamble and epilogue",
                remedy="send multipart/form-data as in RFC 7578",
            )

    def body(self) -> Body:
        """Returns the content of the complete form."""
        if not self._pictures and self._names.needs_image:
            if not self._has_empty_input:
                others = [repr(name[:40])[1:-1] for name in dict.fromkeys((*self._fields, *self._unknown))]
                value = f"the fields {some_of(others, _MAX_NAMED)}" if others else "no fields"
                raise self._names.no_image(f"the form has no field `{self._names.image}`", value=value)
            self._pictures.append(b"")
        for index, picture in enumerate(self._pictures):
            if not picture:
                problem = f"the field `{self._names.image}` is empty"
                raise self._names.no_image(problem, value="0 bytes", index=index)
        return Body(self._pictures, self._fields, unknown_warnings("form field", self._unknown))

    def _begin_part(self, segment: MultipartSegment) -> None:
        self._name = name = (segment.name or "").encode(_ANY_BYTES, "replace").decode("utf-8", "replace")
        self._has_file = bool(segment.filename)
        self._content = _Content()
        self._num_bytes = 0
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise MalformedBody(
                "the form has too many parts", limit=f"at most {_MAX_PARTS}", remedy="send fewer fields"
            )
        coding = segment.header("Content-Transfer-Encoding", "").lower()
        if name == self._names.image and coding in {"base64", "quoted-printable"}:
            problem = f"the form field `{name}` is encoded"
            value = f"Content-Transfer-Encoding: {coding}"
            reason = UnsupportedFormat(problem, value=value, limit="binary", remedy="send its bytes as they are")
            raise BadPicture(reason, len(self._pictures))
        if name != self._names.image and name not in self._names.parameters:
            self._unknown.append(name)

    def _add(self, chunk: bytes | bytearray) -> None:
        self._num_bytes += len(chunk)
        self._num_overhead_bytes -= len(chunk)
        if self._name == self._names.image:
            if len(self._pictures) == self._limits.num_pictures:
                raise TooManyImages(
                    "the request has too many pictures",
                    limit=f"at most {self._limits.num_pictures}",
                    remedy="send the best ones of this plant",
                )
            if self._num_bytes > self._limits.picture_bytes:
                raise _too_large("picture", self._limits.picture_bytes, index=len(self._pictures))
            self._content.write(chunk)
        elif self._name in self._names.parameters:
            if self._num_bytes > self._names.parameters[self._name]:
                raise BadParameter(
                    f"the form field `{self._name}` is too long",
                    limit=f"at most {self._names.parameters[self._name]} bytes",
                    remedy="send a valid value, see /schema",
                )
            self._content.write(chunk)

    def _end_part(self) -> None:
        content = self._content.getvalue()
        if self._name == self._names.image:
            _require_no_text(content, self._names, len(self._pictures))
            if content or self._has_file:
                self._pictures.append(content)
            else:  # a browser sends a file input that nobody used
                self._has_empty_input = True
        elif self._name in self._names.parameters:
            self._fields.setdefault(self._name, []).append(content.decode("utf-8", "replace"))
        self._content = _Content()


def _require_no_text(picture: bytes, names: FormNames, index: int) -> None:
    """Refuses what clients of other services send in place of a picture, and says what to do."""
    start = picture[:_START_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    for pattern, what, remedy in _TEXTS:
        if re.match(pattern, start, re.IGNORECASE):
            raise BadPicture(
                UnsupportedFormat(
                    "the file is not a picture in an accepted format",
                    value=what,
                    limit=SUPPORTED_FORMATS,
                    remedy=remedy.format(image=names.image),
                ),
                index,
            )


async def _chunks(
    receive: Receive, what: str, max_bytes: int, limits: BodyLimits, upload_timeout: asyncio.Timeout
) -> AsyncIterator[bytes]:
    """Gives the chunks of a body, and extends the timeout by the time that their bytes may take."""
    start_s = asyncio.get_running_loop().time()
    timeout_at_s = start_s + limits.time_limit_s(0)
    num_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft("the client disconnected before its upload was complete")
        chunk: bytes = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(what, max_bytes)
        new_timeout_at_s = start_s + limits.time_limit_s(num_bytes)
        if new_timeout_at_s - timeout_at_s > _TIMEOUT_STEP_S:
            upload_timeout.reschedule(new_timeout_at_s)
            timeout_at_s = new_timeout_at_s
        if chunk:
            yield chunk
        more = message.get("more_body", False)


def _check_content_length(content_length: str | None, limit: int, what: str) -> None:
    if content_length is None:
        return
    if not (content_length.isascii() and content_length.isdigit()):
        raise MalformedBody("the header Content-Length is not a number", remedy="let your HTTP library set it")
    num_bytes = int(content_length.lstrip("0")[:20] or "0")  # Python refuses to convert very long numbers
    if num_bytes > limit:
        raise _too_large(what, limit, num_bytes=num_bytes)


def _too_large(what: str, limit: int, *, num_bytes: int | None = None, index: int | None = None) -> TooLarge:
    return TooLarge(
        f"the {what} is too large",
        value=None if num_bytes is None else f"{num_bytes / 1e6:.1f} MB",
        limit=f"at most {limit / 1e6:g} MB",
        remedy="send a smaller version" if what == "picture" else "send fewer or smaller pictures",
        index=index,
    )


def unknown_warnings(kind: str, names: list[str]) -> list[str]:
    """Returns a sentence for each distinct unknown name, up to a limit; long names are shortened."""
    return [f"The {kind} {name[:40]!r} is not known and was ignored." for name in dict.fromkeys(names)][:_MAX_WARNINGS]
