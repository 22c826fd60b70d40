"""The server process: graceful shutdown on SIGTERM and SIGINT, and the SIGHUP handler."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

import structlog
import uvicorn

from serving.readiness import Readiness

_FIRST_REQUEST_S: Final = 1.0  # how long shutdown waits for the request of a connection that has just been opened
_FIRST_REQUEST_CHECKS: Final = 20

_log = structlog.get_logger(__name__)


class DrainingServer(uvicorn.Server):
    """Keeps accepting connections for a while after SIGTERM, but reports that it is not ready.

    A load balancer needs this time to notice. uvicorn alone would refuse connections at once. SIGINT, which comes from
    a keyboard, skips the wait. A second signal ends the process at once.

    Args:
        config: uvicorn's configuration.
        readiness: Set to draining at the first signal.
        drain_s: How long to keep accepting connections, seconds.
    """

    def __init__(self, config: uvicorn.Config, readiness: Readiness, drain_s: float) -> None:
        super().__init__(config)
        self._readiness, self._drain_s = readiness, drain_s
        self._listening: list[socket.socket] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handles SIGTERM and SIGINT; may run between any two steps of the event loop."""
        if self._readiness.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._readiness.is_draining = True
        _log.info("draining", signal=signal.Signals(sig).name)
        if sig == signal.SIGINT or self._drain_s == 0:
            self.should_exit = True
        else:
            timer = threading.Timer(self._drain_s, self._stop_accepting)
            timer.daemon = True
            timer.start()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts uvicorn and keeps copies of the listening sockets, because `shutdown` accepts from them."""
        self._listening = [listening.dup() for listening in sockets or []]
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts the connections that clients have already opened, then shuts uvicorn down."""
        for server in self.servers:
            server.close()
        for listening in self._listening:
            await self._accept_queued(listening)
            listening.close()
        await self._wait_for_first_requests()
        await super().shutdown(sockets)

    def _stop_accepting(self) -> None:
        self.should_exit = True

    async def _accept_queued(self, listening: socket.socket) -> None:
        """Accepts the connections in the kernel's queue, which closing the socket would reset."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the queue is empty
                return
            await loop.connect_accepted_socket(self._new_protocol, connection)

    def _new_protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def _wait_for_first_requests(self) -> None:
        """Waits until each connection has begun its first request; uvicorn would close it as idle."""
        for _ in range(_FIRST_REQUEST_CHECKS):
            if all(connection.cycle is not None for connection in self.server_state.connections):  # type: ignore[union-attr]
                return
            await asyncio.sleep(_FIRST_REQUEST_S / _FIRST_REQUEST_CHECKS)


def on_sighup(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> None:
    """Calls `reload` on SIGHUP, if the platform has that signal and this is the main thread."""
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, reload)
