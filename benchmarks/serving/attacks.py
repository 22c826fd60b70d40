"""Attacks of one client that try to shut out all others for little effort; each goes on until it is cancelled."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from benchmarks.serving.http_client import Connection, ConnectionLost, connect, post_head, post_picture
from benchmarks.serving.photographs import drawn, slow_jpeg
from benchmarks.serving.servers import IDENTIFY

AttackName = Literal["heads without a body", "large declared bodies", "slow JPEGs", "slow uploads", "flood"]
_ADDRESS: Final = "203.0.113.66"
_PAUSE_S: Final = 0.25  # before the next try; with less, the sending itself would take much of the processor time
_HEADS, _HELD_S = 12, 0.9
_SLOW_UPLOADS: Final = 100
_PIECE_BYTES, _PIECE_S = 16_384, 0.9  # a little faster than the slowest upload that the service allows
_UPLOAD_BYTES: Final = 1_000_000
_FLOOD: Final = 32
_PICTURES: Final = 5
_PIXELS: Final = (4000, 3000)

Attack = Callable[[int, Counter[str]], Awaitable[None]]
"""Attacks the server at a port, and counts the statuses of its answers."""


def from_address(request: bytes, address: str) -> bytes:
    """Adds the header by which a trusted proxy names its client."""
    return request.replace(b"\r\n", f"\r\nX-Forwarded-For: {address}\r\n".encode(), 1)


def attacks() -> Mapping[AttackName, Attack]:
    """Returns all attacks, by name."""
    large = [_head(60_000_000)] * 4 + [_head(16_000_000, b"image/jpeg")]
    slow = from_address(post_picture(IDENTIFY, *[slow_jpeg(*_PIXELS)] * _PICTURES), _ADDRESS)
    valid = from_address(post_picture(IDENTIFY, drawn(1156, 865)), _ADDRESS)
    return {
        "heads without a body": _together([_held(_head(_UPLOAD_BYTES))] * _HEADS),
        "large declared bodies": _together([_sent(head) for head in large]),
        "slow JPEGs": _sent(slow),
        "slow uploads": _together([_trickled(_head(_UPLOAD_BYTES, b"image/jpeg"))] * _SLOW_UPLOADS),
        "flood": _together([_sent(valid)] * _FLOOD),
    }


def _head(num_bytes: int, content_type: bytes = b"multipart/form-data") -> bytes:
    return from_address(post_head(IDENTIFY, num_bytes), _ADDRESS).replace(b"multipart/form-data", content_type)


def _together(several: list[Attack]) -> Attack:
    async def attack(port: int, words: Counter[str]) -> None:
        await asyncio.gather(*(each(port, words) for each in several))

    return attack


def _repeated(visit: Callable[[Connection], Awaitable[str]]) -> Attack:
    """Visits again and again, each time over a new connection."""

    async def attack(port: int, words: Counter[str]) -> None:
        while True:
            try:
                with await connect(port) as connection:
                    words[await visit(connection)] += 1
            except ConnectionLost:
                words["connection lost"] += 1
            await asyncio.sleep(_PAUSE_S)

    return attack


def _sent(request: bytes) -> Attack:
    """Sends all that there is of a request and waits for the answer."""

    async def visit(connection: Connection) -> str:
        return str((await connection.send(request)).status)

    return _repeated(visit)


def _held(head: bytes) -> Attack:
    """Sends a head, and leaves before the service gives up to wait for the body."""

    async def visit(connection: Connection) -> str:
        try:
            async with asyncio.timeout(_HELD_S):
                return str((await connection.send(head)).status)
        except TimeoutError:
            return "left"

    return _repeated(visit)


def _trickled(head: bytes) -> Attack:
    """Uploads as slowly as is allowed."""

    async def visit(connection: Connection) -> str:
        answer = asyncio.ensure_future(connection.send(head))
        await asyncio.sleep(0)  # the head goes first
        try:
            while not answer.done():
                connection.write(bytes(_PIECE_BYTES))
                await asyncio.wait({answer}, timeout=_PIECE_S)
            return str(answer.result().status)
        finally:
            answer.cancel()

    return _repeated(visit)
