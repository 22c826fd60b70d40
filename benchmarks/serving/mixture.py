"""A mixture of requests for a long run: good, broken, too large, and from clients that disconnect."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from benchmarks.serving.http_client import Answer, Connection, ConnectionLost, connect, post_head
from benchmarks.serving.photographs import broken, drawn, oversized_png
from benchmarks.serving.servers import IDENTIFY, identify

Kind = Literal["good", "broken", "too many pixels", "too many bytes", "client left"]
_TURN: Final[Sequence[Kind]] = (
    "good", "broken", "good", "too many pixels", "good", "client left", "good", "too many bytes", "good", "broken",
)  # fmt: skip
EXPECTED: Final[Mapping[Kind, str]] = {
    "good": "200",
    "broken": "422",
    "too many pixels": "422",
    "too many bytes": "413",
    "client left": "left",
}
"""How each kind should end."""
_TOO_MANY_BYTES: Final = 100_000_000
_PATIENCE_S: Final = 60.0


class Tally(msgspec.Struct, frozen=True):
    """How often requests of a kind ended in one way."""

    kind: Kind
    word: str
    """The status, or how the requests ended without one."""
    count: int


async def send_mixture(port: int, requests: int, concurrency: int, watch: Callable[[int], None]) -> list[Tally]:
    """Sends requests of all kinds in turns, from several clients.

    Args:
        port: Port of the service.
        requests: Number of requests.
        concurrency: Clients; each sends its next request when the last one has ended.
        watch: Called after each request with the number of ended requests.
    """
    messages, counts = _messages(), Counter[tuple[Kind, str]]()
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:  # shared by all clients: each number is taken once
            kind = _TURN[number % len(_TURN)]
            counts[kind, await _one(port, kind, messages[kind])] += 1
            watch(counts.total())

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return [Tally(kind, word, count) for (kind, word), count in sorted(counts.items())]


def _messages() -> dict[Kind, bytes]:
    picture = drawn(320, 240)
    whole = identify(picture)
    return {
        "good": whole,
        "broken": identify(broken(picture)),
        "too many pixels": identify(oversized_png(), "image/png"),
        "too many bytes": post_head(IDENTIFY, _TOO_MANY_BYTES) + whole[:2000],
        "client left": whole[: len(whole) // 2],
    }


async def _one(port: int, kind: Kind, message: bytes) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            with await connect(port) as connection:
                if kind == "client left":
                    return await _leave(connection, message)
                answer: Answer = await connection.send(message)
                return str(answer.status)
    except ConnectionLost:
        return "connection lost"
    except TimeoutError:
        return "gave up"


async def _leave(connection: Connection, message: bytes) -> str:
    connection.write(message)
    await asyncio.sleep(0.005)  # so that the service has started to read
    return "left"
