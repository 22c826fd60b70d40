"""The service's end of the socket to a decoding child: orders out, replies in, and the news that the child is gone."""

import asyncio
from typing import cast

import msgspec

from models.errors import BotanifyError
from serving.decoding.messages import MAX_MESSAGE_BYTES, PREFIX_BYTES, Order, Reply, pack, unpack_reply


class ChildLost(BotanifyError):
    """The child has ended, whatever the reason."""

    code = "child_lost"


class Channel(asyncio.Protocol):
    """A protocol for a stream of replies, one to each order."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set once the child is gone, or was cut off because it broke the rules."""
        self._received = bytearray()
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # not a subclass of it under uvloop

    def data_received(self, data: bytes) -> None:
        """Called by asyncio; delivers a reply once it is complete."""
        self._received += data
        size = int.from_bytes(self._received[:PREFIX_BYTES], "big")
        if size > MAX_MESSAGE_BYTES:
            self.abort()
        elif len(self._received) >= PREFIX_BYTES + max(size, 1):
            self._deliver(bytes(self._received[PREFIX_BYTES:]))
            self._received.clear()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the name that asyncio uses
        """Called by asyncio."""
        self.lost.set()
        self._replies.put_nowait(None)

    async def receive(self) -> Reply:
        """The next reply.

        Raises:
            ChildLost: There will be none.
        """
        reply = await self._replies.get()
        if reply is None:
            self._replies.put_nowait(None)
            raise ChildLost("the child has ended")
        return reply

    def send(self, order: Order) -> None:
        """Sends an order; goes nowhere when the child is gone."""
        if self._transport is not None:
            self._transport.write(pack(order))

    def close(self) -> None:
        """Ends the conversation, which a child takes for the wish that it ends too."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """As `close`, without sending what is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _deliver(self, content: bytes) -> None:
        try:
            self._replies.put_nowait(unpack_reply(content))
        except msgspec.MsgspecError:  # also when two came at once, which no order asks for
            self.abort()
