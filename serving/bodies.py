"""The body of an identify request -> pictures and fields: multipart/form-data, or one raw picture.

Limits hold while the bytes stream in, nothing goes to disk, and a field's name or content type never decides anything:
the bytes of a picture do, later.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header  # type: ignore[import-untyped]

from serving.errors import BadParameter, ClientLeft, MalformedBody, NoImage, TooLarge, TooManyImages

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

_IMAGE_FIELD: Final = "image"
_K_FIELD: Final = "k"
_MAX_PARTS: Final = 64
_MAX_FIELD_BYTES: Final = 64  # of a field with a number in it
_MAX_BOUNDARY_LENGTH: Final = 70  # RFC 2046, 5.1.1
_MAX_WARNINGS: Final = 10
_SEND_A_PICTURE: Final = "send the original photograph in the form field `image`, or as the whole body"


class BodyLimits(msgspec.Struct, frozen=True):
    """What a body may hold at most."""

    picture_bytes: int
    request_bytes: int
    num_pictures: int


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
        limits: What the body may hold.

    Raises:
        NoImage: No picture, or an empty one.
        MalformedBody: The body is no complete form, or a header is wrong.
        TooLarge: More bytes than allowed, in all or in one picture.
        TooManyImages: More pictures than allowed.
        ClientLeft: The client left in the middle.
    """
    kind, options = parse_options_header(content_type)
    if kind == "multipart/form-data":
        _require_length(content_length, limits.request_bytes, "request")
        return await _read_form(options.get("boundary", ""), _chunks(receive, limits.request_bytes, "request"), limits)
    _require_length(content_length, limits.picture_bytes, "picture")
    return await _read_raw(_chunks(receive, limits.picture_bytes, "picture"))


async def _read_raw(chunks: AsyncIterator[bytes]) -> Body:
    picture = b"".join([chunk async for chunk in chunks])
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
    except MultipartError as error:
        raise MalformedBody(
            "the body is no complete multipart form", value=error, remedy="send multipart/form-data as RFC 7578 has it"
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


class _Form:
    """A multipart form while it arrives."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._pictures: list[bytes] = []
        self._k: str | None = None
        self._unknown: list[str] = []
        self._num_parts = 0
        self._name = ""
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        """Takes the start of a part, some bytes of it, or (None) its end."""
        if event is None:
            self._end_part()
        elif isinstance(event, MultipartSegment):
            self._begin_part(event.name or "")
        else:
            self._add(bytes(event))

    def body(self) -> Body:
        """What the form held, once it is complete."""
        if not self._pictures:
            raise NoImage("the form has no field `image`", remedy=_SEND_A_PICTURE)
        for index, picture in enumerate(self._pictures):
            if not picture:
                raise NoImage("the field `image` is empty", value="0 bytes", remedy=_SEND_A_PICTURE, index=index)
        return Body(self._pictures, self._k, unknown_warnings("form field", self._unknown))

    def _begin_part(self, name: str) -> None:
        self._name, self._chunks, self._num_bytes = name, [], 0
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

    def _add(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        if self._name == _IMAGE_FIELD:
            if self._num_bytes > self._limits.picture_bytes:
                raise _too_large("picture", self._limits.picture_bytes, index=len(self._pictures))
            self._chunks.append(chunk)
        elif self._name == _K_FIELD:
            if self._num_bytes > _MAX_FIELD_BYTES:
                raise BadParameter("the form field `k` is no number", remedy="send a whole number")
            self._chunks.append(chunk)

    def _end_part(self) -> None:
        content = b"".join(self._chunks)
        if self._name == _IMAGE_FIELD:
            self._pictures.append(content)
        elif self._name == _K_FIELD:
            self._k = content.decode("utf-8", "replace")
        self._chunks = []


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


def _require_length(content_length: str | None, limit: int, what: str) -> None:
    if content_length is None:
        return
    if not content_length.isascii() or not content_length.isdigit():
        raise MalformedBody("the header Content-Length is no number", remedy="let your HTTP library write it")
    if int(content_length[:20]) > limit:
        raise _too_large(what, limit, num_bytes=int(content_length[:20]))


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
