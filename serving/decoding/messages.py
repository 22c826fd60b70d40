"""What the service and a decoding child say to each other: MessagePack behind four bytes of length.

The service orders `ReadHeader`, learns the `Cost`, and once that memory is granted orders `Decode`, or `Forget` if
nobody wants the picture any more. The picture's bytes and its pixels cross through a `SharedArea`.
"""

from typing import Annotated, BinaryIO, Final

import msgspec

from models.errors import PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.preprocess import InputSpec

PREFIX_BYTES: Final = 4
MAX_MESSAGE_BYTES: Final = 65_536  # each is a few hundred bytes; a child that says more is broken
Natural = Annotated[int, msgspec.Meta(ge=0)]
_ERRORS: Final = {kind.code: kind for kind in (PictureError, UnsupportedFormat, UnreadableImage, TooManyPixels)}


class ReadHeader(msgspec.Struct, frozen=True, tag=True):
    """Order: take the picture out of the area and read its header."""

    num_bytes: Natural
    """Size of the picture in the area."""
    spec: InputSpec


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Order: decode the picture whose header was read, and put its pixels into the area."""


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Order without a reply: drop the picture whose header was read."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Reply, unasked: the child has started."""


class Cost(msgspec.Struct, frozen=True, tag=True):
    """Reply: what the decode will take, as `models.decode_cost` says."""

    num_bytes: Natural


class Done(msgspec.Struct, frozen=True, tag=True):
    """Reply: the pixels lie in the area, float32 `chw`, as large as the order's input."""

    format: str
    width: Natural
    """Width of the upright original, px."""
    height: Natural
    """Height of the upright original, px."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Reply: the parts of a `PictureError`."""

    code: str
    problem: str
    value: str | None
    limit: str | None
    remedy: str | None

    @classmethod
    def of(cls, error: PictureError) -> "Refused":
        """Takes an error apart."""
        value = None if error.value is None else str(error.value)
        return cls(error.code, error.problem, value, error.limit, error.remedy)

    def error(self) -> PictureError:
        """Puts the error together again."""
        kind = _ERRORS.get(self.code, PictureError)
        return kind(self.problem, value=self.value, limit=self.limit, remedy=self.remedy)


Order = ReadHeader | Decode | Forget
Reply = Ready | Cost | Done | Refused
_encoder: Final = msgspec.msgpack.Encoder()
_order_decoder: Final[msgspec.msgpack.Decoder[Order]] = msgspec.msgpack.Decoder(Order)
_reply_decoder: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)


def pack(message: Order | Reply) -> bytes:
    """A message as it is sent."""
    content = _encoder.encode(message)
    return len(content).to_bytes(PREFIX_BYTES, "big") + content


def unpack_reply(content: bytes) -> Reply:
    """A reply from what stands behind its length.

    Raises:
        msgspec.DecodeError: It is none.
    """
    return _reply_decoder.decode(content)


def read_order(stream: BinaryIO) -> Order | None:
    """Waits for the next order; `None` once nobody is there to give one."""
    prefix = stream.read(PREFIX_BYTES)
    content = stream.read(int.from_bytes(prefix, "big"))
    return _order_decoder.decode(content) if content else None
