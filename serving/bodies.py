"""The body of an identify request -> pictures and fields: multipart/form-data, or one raw picture.

Limits hold while the bytes stream in, nothing goes to disk, and a field's name or content type never decides anything:
the bytes of a picture do, later. A part that is itself encoded (base64, multipart/mixed) is taken as it stands, so it
is no picture: RFC 7578, 4.7, has browsers and libraries send none.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header  # type: ignore[import-untyped]

from serving.errors import BadParameter, ClientLeft, MalformedBody, NoImage, SlowBody, TooLarge, TooManyImages

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

_IMAGE_FIELD: Final = "image"
_K_FIELD: Final = "k"
_MAX_PARTS: Final = 64
_MAX_FIELD_BYTES: Final = 64  # of a field with a number in it
_MAX_BOUNDARY_LENGTH: Final = 70  # RFC 2046, 5.1.1
_MAX_WARNINGS: Final = 10
# Of a form beside its content: 64 parts with their boundaries and headers take a third of it. Headers that are folded
# over and over cost the parser 300 times as much as content, and preambles have no end of their own.
_MAX_OVERHEAD_BYTES: Final = 65_536
_PIECE_BYTES: Final = 262_144
_PACE_STEP_S: Final = 0.1  # timers are moved in such steps, so that a thousand tiny chunks do not move one each
_SEND_A_PICTURE: Final = "send the original photograph in the form field `image`, or as the whole body"


class BodyLimits(msgspec.Struct, frozen=True):
    """What a body may hold at most, and how long it may take.

    A body may take `grace_s` and as long as `bytes_per_s` needs for what of it has arrived, and never more than
    `upload_s`: one that stands still is ended as soon as its average falls under the rate.
    """

    picture_bytes: int
    request_bytes: int
    num_pictures: int
    upload_s: float = 60.0
    """Longest time for the whole body."""
    bytes_per_s: float = 16_384.0
    """Least average rate; a slow mobile connection sends four times as much."""
    grace_s: float = 5.0
    """Time that does not count for the rate."""

    def seconds_for(self, num_bytes: int) -> float:
        """How long after its start a body may take of which so many bytes have arrived."""
        return min(self.upload_s, self.grace_s + num_bytes / self.bytes_per_s)


class Body(msgspec.Struct, frozen=True):
    """What a body held."""

    pictures: list[bytes]
    """At least one, none of them empty."""
    k: str | None
    """The form field `k` as it was sent."""
    warnings: list[str]


async def read_body(content_type: str, content_length: str | None, receive: Receive, limits: BodyLimits) -> Body:
    """Reads the body of a request.

    Args:
        content_type: The header, or nothing; only multipart/form-data is told from the rest.
        content_length: The header, if sent; a length over the limit is refused before anything is read.
        receive: Gives the parts of the body, as ASGI does.
        limits: What the body may hold and how long it may take.

    Raises:
        NoImage: No picture, or an empty one.
        MalformedBody: The body is no complete form, or a header is wrong.
        SlowBody: It did not arrive in time, or not fast enough.
        TooLarge: More bytes than allowed, in all or in one picture.
        TooManyImages: More pictures than allowed.
        BadParameter: The field `k` is far too long for a number.
        ClientLeft: The client left in the middle.
    """
    is_form, boundary = _kind_of(content_type)
    what, most = ("request", limits.request_bytes) if is_form else ("picture", limits.picture_bytes)
    _require_length(content_length, most, what)
    try:
        async with asyncio.timeout(limits.seconds_for(0)) as patience:
            chunks = _paced(_chunks(receive, most, what), patience, limits)
            return await (_read_form(boundary, chunks, limits) if is_form else _read_raw(chunks))
    except TimeoutError:
        raise _too_slow(limits) from None


def most_bytes(headers: Mapping[str, str], limits: BodyLimits) -> int:
    """How many bytes the body of a request can come to: what it declares, and never more than its limit.

    Args:
        headers: Of the request, by lower-case names.
        limits: What the body may hold.
    """
    is_form, _ = _kind_of(headers.get("content-type", ""))
    most = limits.request_bytes if is_form else limits.picture_bytes
    declared = headers.get("content-length", "")
    return min(_number(declared), most) if _is_number(declared) else most


def _kind_of(content_type: str) -> tuple[bool, str]:
    """Whether the body is a form, and its boundary."""
    kind, options = parse_options_header(content_type)
    return kind == "multipart/form-data", options.get("boundary", "")


async def _read_raw(chunks: AsyncIterator[bytes]) -> Body:
    content = _Content()
    async for chunk in chunks:
        content.write(chunk)
    picture = content.whole()
    if not picture:
        raise NoImage("the request has no body", remedy=_SEND_A_PICTURE)
    return Body([picture], None, [])


async def _read_form(boundary: str, chunks: AsyncIterator[bytes], limits: BodyLimits) -> Body:
    form = _Form(limits)
    try:
        with _parser(boundary) as parser:
            async for chunk in chunks:
                for event in parser.parse(chunk):
                    form.take(event)
                form.bound_overhead(chunk)
    except MultipartError as error:
        raise MalformedBody(
            "the body is no complete multipart form",
            value=error.args[0],  # a second one would show the bytes at fault
            remedy="send multipart/form-data as RFC 7578 has it",
        ) from error
    return form.body()


def _parser(boundary: str) -> PushMultipartParser:
    if not 0 < len(boundary) <= _MAX_BOUNDARY_LENGTH:
        raise MalformedBody(
            "the content type gives no usable boundary",
            value=f"{len(boundary)} characters",
            limit=f"1 to {_MAX_BOUNDARY_LENGTH}",
            remedy="let your HTTP library write the header Content-Type",
        )
    return PushMultipartParser(boundary)


class _Content:
    """Bytes that arrive in chunks.

    They are kept in pieces: a list of chunks would grow with their number, and the client chooses that; one buffer
    would be moved as it grows, which took 3 ms of a photograph of 3 MB.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._newest = io.BytesIO()

    def write(self, chunk: bytes | bytearray) -> None:
        """Adds a chunk."""
        self._newest.write(chunk)
        if self._newest.tell() >= _PIECE_BYTES:
            self._pieces.append(self._newest.getvalue())
            self._newest = io.BytesIO()

    def whole(self) -> bytes:
        """All of them."""
        return b"".join([*self._pieces, self._newest.getvalue()])


class _Form:
    """A multipart form while it arrives."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._pictures: list[bytes] = []
        self._k: str | None = None
        self._unknown: list[str] = []
        self._num_parts = self._num_overhead_bytes = 0
        self._name = ""
        self._content = _Content()
        self._num_bytes = 0

    def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        """Takes the start of a part, some bytes of it, or (None) its end."""
        if event is None:
            self._end_part()
        elif isinstance(event, MultipartSegment):
            self._begin_part(event.name or "")
        else:
            self._add(event)

    def bound_overhead(self, chunk: bytes) -> None:
        """Counts what of the form is no content; to be called with each chunk after its events."""
        self._num_overhead_bytes += len(chunk)
        if self._num_overhead_bytes > _MAX_OVERHEAD_BYTES:
            raise MalformedBody(
                "the form holds too much beside its fields",
                limit=f"at most {_MAX_OVERHEAD_BYTES} bytes of headers, preamble and epilogue",
                remedy="send multipart/form-data as RFC 7578 has it",
            )

    def body(self) -> Body:
        """What the form held, once it is complete."""
        if not self._pictures:
            raise NoImage("the form has no field `image`", remedy=_SEND_A_PICTURE)
        for index, picture in enumerate(self._pictures):
            if not picture:
                raise NoImage("the field `image` is empty", value="0 bytes", remedy=_SEND_A_PICTURE, index=index)
        return Body(self._pictures, self._k, unknown_warnings("form field", self._unknown))

    def _begin_part(self, name: str) -> None:
        self._name, self._content, self._num_bytes = name, _Content(), 0
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise MalformedBody("the form has too many parts", limit=f"at most {_MAX_PARTS}", remedy="send fewer")
        if name == _IMAGE_FIELD and len(self._pictures) == self._limits.num_pictures:
            raise TooManyImages(
                "the request has too many pictures",
                limit=f"at most {self._limits.num_pictures}",
                remedy="send the best ones of this plant",
            )
        if name not in {_IMAGE_FIELD, _K_FIELD}:
            self._unknown.append(name)

    def _add(self, chunk: bytes | bytearray) -> None:
        self._num_bytes += len(chunk)
        self._num_overhead_bytes -= len(chunk)
        if self._name == _IMAGE_FIELD:
            if self._num_bytes > self._limits.picture_bytes:
                raise _too_large("picture", self._limits.picture_bytes, index=len(self._pictures))
            self._content.write(chunk)
        elif self._name == _K_FIELD:
            if self._num_bytes > _MAX_FIELD_BYTES:
                raise BadParameter("the form field `k` is no number", remedy="send a whole number")
            self._content.write(chunk)

    def _end_part(self) -> None:
        content = self._content.whole()
        if self._name == _IMAGE_FIELD:
            self._pictures.append(content)
        elif self._name == _K_FIELD:
            self._k = content.decode("utf-8", "replace")
        self._content = _Content()


async def _chunks(receive: Receive, limit: int, what: str) -> AsyncIterator[bytes]:
    num_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft("the client left before its upload was complete")
        chunk: bytes = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > limit:
            raise _too_large(what, limit)
        if chunk:
            yield chunk
        more = message.get("more_body", False)


async def _paced(chunks: AsyncIterator[bytes], patience: asyncio.Timeout, limits: BodyLimits) -> AsyncIterator[bytes]:
    """Passes the chunks on and waits the longer for the next, the more there was."""
    start_s = asyncio.get_running_loop().time()
    until_s = start_s + limits.seconds_for(0)
    num_bytes = 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        earned_s = start_s + limits.seconds_for(num_bytes)
        if earned_s - until_s > _PACE_STEP_S:
            patience.reschedule(earned_s)
            until_s = earned_s
        yield chunk


def _too_slow(limits: BodyLimits) -> SlowBody:
    return SlowBody(
        "the body arrives too slowly",
        limit=f"{limits.bytes_per_s / 1e3:g} kB a second and at most {limits.upload_s:g} seconds in all",
        remedy="send smaller pictures or use a faster connection",
    )


def _require_length(content_length: str | None, limit: int, what: str) -> None:
    if content_length is None:
        return
    if not _is_number(content_length):
        raise MalformedBody("the header Content-Length is no number", remedy="let your HTTP library write it")
    if _number(content_length) > limit:
        raise _too_large(what, limit, num_bytes=_number(content_length))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[:20] or "0")  # Python refuses to convert thousands of digits


def _too_large(what: str, limit: int, *, num_bytes: int | None = None, index: int | None = None) -> TooLarge:
    return TooLarge(
        f"the {what} is too large",
        value=None if num_bytes is None else f"{num_bytes / 1e6:.1f} MB",
        limit=f"at most {limit / 1e6:g} MB",
        remedy="send a smaller version" if what == "picture" else "send fewer or smaller pictures",
        index=index,
    )


def unknown_warnings(kind: str, names: list[str]) -> list[str]:
    """One sentence for each unknown name, each name once, shortened and not too many of them."""
    return [f"The {kind} {name[:40]!r} is not known and was ignored." for name in dict.fromkeys(names)][:_MAX_WARNINGS]
