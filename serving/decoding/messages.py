"""The messages between the service and a decoding child: MessagePack with a length prefix of four bytes.

The service sends `ReadHeader` and receives the `Cost`. Once that much memory is granted it sends `Decode`. The child
keeps nothing between commands. The bytes and pixels of the picture are passed through a `SharedArea`.
"""

from typing import Annotated, BinaryIO, Final

import msgspec

from models.errors import PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.preprocess import InputSpec

PREFIX_BYTES: Final = 4
MAX_MESSAGE_BYTES: Final = 65_536  # real messages take a few hundred bytes; a child that sends more is broken
Natural = Annotated[int, msgspec.Meta(ge=0)]
_ERRORS: Final = {kind.code: kind for kind in (PictureError, UnsupportedFormat, UnreadableImage, TooManyPixels)}


class ReadHeader(msgspec.Struct, frozen=True, tag=True):
    """Command: read the header of the picture in the shared area."""

    num_bytes: Natural
    """Size of the picture."""
    spec: InputSpec
    memory_bytes: Natural
    """Memory that is granted for the step; the child cannot take more."""


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Command: decode the picture in the shared area, and replace it there by its pixels."""

    num_bytes: Natural
    """Size of the picture."""
    spec: InputSpec
    memory_bytes: Natural
    """Memory that is granted for the step; the child cannot take more."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Command: reply `Ready`."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first message of a child, sent once it has started; also the reply to `Ping`."""


class Cost(msgspec.Struct, frozen=True, tag=True):
    """Reply: the memory that the decode needs, as `models.decode_cost` estimates it."""

    num_bytes: Natural


class Done(msgspec.Struct, frozen=True, tag=True):
    """Reply: the pixels are in the shared area, float32 `chw`, in the size of the requested input."""

    format: str
    width: Natural
    """Width of the upright original, px."""
    height: Natural
    """Height of the upright original, px."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Reply: the fields of a `PictureError`."""

    code: str
    problem: str
    value: str | None
    limit: str | None
    remedy: str | None

    @classmethod
    def of(cls, error: PictureError) -> "Failed":
        """Converts an error to a message."""
        value = None if error.value is None else str(error.value)
        return cls(error.code, error.problem, value, error.limit, error.remedy)

    def error(self) -> PictureError:
        """Converts the message back to an error."""
        kind = _ERRORS.get(self.code, PictureError)
        return kind(self.problem, value=self.value, limit=self.limit, remedy=self.remedy)


Command = ReadHeader | Decode | Ping
Reply = Ready | Cost | Done | Failed
_encoder: Final = msgspec.msgpack.Encoder()
_command_decoder: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_reply_decoder: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)


def pack(message: Command | Reply) -> bytes:
    """Encodes a message with its length prefix."""
    content = _encoder.encode(message)
    return len(content).to_bytes(PREFIX_BYTES, "big") + content


def unpack_reply(content: bytes) -> Reply:
    """Decodes a reply, given without its length prefix.

    Raises:
        msgspec.DecodeError: The content is not a reply.
    """
    return _reply_decoder.decode(content)


def read_command(stream: BinaryIO) -> Command | None:
    """Waits for the next command; returns None if the service has closed the connection."""
    prefix = stream.read(PREFIX_BYTES)
    content = stream.read(int.from_bytes(prefix, "big"))
    return _command_decoder.decode(content) if content else None
