"""The service's end of the socket to a decoding child: sends commands, receives replies, detects an ended child."""

import asyncio
from typing import cast

import msgspec

from models.errors import BotanifyError
from serving.decoding.messages import MAX_MESSAGE_BYTES, PREFIX_BYTES, Command, Reply, pack, unpack_reply


class ChildLost(BotanifyError):
    """The child has ended."""

    code = "child_lost"


class Channel(asyncio.Protocol):
    """An asyncio protocol that receives one reply to each command."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set once the child has ended or is disconnected."""
        self._received = bytearray()
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio.Transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio; queues a reply once it is complete."""
        self._received += data
        size = int.from_bytes(self._received[:PREFIX_BYTES], "big")
        if size > MAX_MESSAGE_BYTES:
            self.abort()
        elif len(self._received) >= PREFIX_BYTES + max(size, 1):
            self._queue_reply(bytes(self._received[PREFIX_BYTES:]))
            self._received.clear()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the name that asyncio uses
        """Called by asyncio."""
        self.lost.set()
        self._replies.put_nowait(None)

    async def receive(self) -> Reply:
        """Waits for the next reply.

        Raises:
            ChildLost: The connection has ended.
        """
        reply = await self._replies.get()
        if reply is None:
            self._replies.put_nowait(None)
            raise ChildLost("the child has ended")
        return reply

    def send(self, command: Command) -> None:
        """Sends a command.

        Raises:
            ChildLost: The connection has ended.
        """
        if self.lost.is_set() or self._transport is None or self._transport.is_closing():
            raise ChildLost("the child has ended")  # uvloop raises RuntimeError for a write to a closed transport
        self._transport.write(pack(command))

    def close(self) -> None:
        """Closes the connection after pending data is sent; the child then exits."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once, without sending pending data."""
        self.lost.set()  # asyncio calls `connection_lost` only later, and nobody may use the child until then
        if self._transport is not None:
            self._transport.abort()

    def _queue_reply(self, content: bytes) -> None:
        try:
            self._replies.put_nowait(unpack_reply(content))
        except msgspec.MsgspecError:  # invalid content, or two replies to one command
            self.abort()
