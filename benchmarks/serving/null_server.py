"""Program: a server that answers each request at once, to measure the cost of the load generator itself.

python benchmarks/serving/null_server.py PORT
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import httptools

from benchmarks.serving.process_tree import end_watcher, free_port, watcher_of

_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class NullProtocol(asyncio.Protocol):
    """Answers every complete request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts a connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        """Parses received bytes."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Sends the answer."""
        self._transport.write(_ANSWER)


@contextmanager
def null_server() -> Iterator[int]:
    """Runs the program on a free port during the block; yields the port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, str(port)])
    watcher = watcher_of(process.pid)
    try:
        while process.poll() is None and not _listens(port):
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()
        end_watcher(watcher)


async def serve(port: int) -> None:
    """Answers until it is cancelled."""
    server = await asyncio.get_running_loop().create_server(NullProtocol, "127.0.0.1", port)
    await server.serve_forever()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
