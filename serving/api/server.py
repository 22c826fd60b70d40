"""The server process: graceful shutdown on SIGTERM and SIGINT, and the SIGHUP handler."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final

import structlog
import uvicorn

_FIRST_REQUEST_S: Final = 1.0  # how long shutdown waits for the request of a connection that has just been opened
_CHECK_S: Final = 0.05
_CUT_BEFORE_S: Final = 2.0  # how long before its end the shutdown cancels requests
_LINGER_S: Final = 1.0  # time for clients to read the response to a canceled request; the rest is for closing

_log = structlog.get_logger(__name__)


class DrainingServer(uvicorn.Server):
    """Keeps accepting connections for a while after SIGTERM, but reports that it is not ready.

    A load balancer needs this time to notice. uvicorn alone would refuse connections at once. SIGINT, which comes from
    a keyboard, skips the wait. A second signal ends the process at once.

    Then it finishes the requests in progress. Those that slow clients would stretch beyond `shutdown_s` are canceled;
    `serving.api.middleware` answers them with 503.

    Args:
        config: uvicorn's configuration.
        on_drain: Called at the first signal.
        drain_s: How long to keep accepting connections, seconds.
        shutdown_s: How long the shutdown may take in all, seconds from the first signal.
        on_listening: Called once requests are answered.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_drain: Callable[[], None],
        drain_s: float,
        shutdown_s: float,
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._on_drain = on_drain
        self._drain_s = drain_s
        self._shutdown_s = shutdown_s
        self._on_listening = on_listening
        self._end_at: float | None = None  # on the clock of `time.monotonic`
        self._listening: list[socket.socket] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handles SIGTERM and SIGINT; may run between any two steps of the event loop."""
        if self._end_at is not None:
            os._exit(0)  # uvicorn would log a traceback of the lifespan that it cancels
        self._end_at = time.monotonic() + self._shutdown_s
        self._on_drain()
        _log.info("draining", signal=signal.Signals(sig).name)
        if sig == signal.SIGINT or self._drain_s == 0:
            self.should_exit = True
        else:
            timer = threading.Timer(self._drain_s, lambda: setattr(self, "should_exit", True))
            timer.daemon = True
            timer.start()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts uvicorn and keeps copies of the listening sockets, because `shutdown` accepts from them."""
        self._listening = [listening.dup() for listening in sockets or []]
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts the connections that clients have already opened, finishes requests, then shuts uvicorn down."""
        for server in self.servers:
            server.close()
        for listening in self._listening:
            await self._accept_queued(listening)
            listening.close()

        def have_begun() -> bool:  # its first request; uvicorn would close the connection as idle
            return all(connection.cycle is not None for connection in self.server_state.connections)  # type: ignore[union-attr]

        await self._wait_until(have_begun, time.monotonic() + _FIRST_REQUEST_S)
        await self._finish_requests()
        await super().shutdown(sockets)

    async def _accept_queued(self, listening: socket.socket) -> None:
        """Accepts the connections in the kernel's queue, which closing the socket would reset."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the queue is empty
                return
            new_protocol: Callable[[], asyncio.Protocol] = partial(  # type: ignore[call-arg]
                self.config.http_protocol_class,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            await loop.connect_accepted_socket(new_protocol, connection)

    async def _finish_requests(self) -> None:
        """Waits until all connections have ended; cancels the requests that are left when the time is over."""
        end_at = self._end_at or time.monotonic() + self._shutdown_s
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        if await self._wait_until(self._has_no_connections, end_at - _CUT_BEFORE_S):
            return
        tasks = tuple(self.server_state.tasks)
        _log.warning("shutdown_cut", num_requests=len(tasks), num_connections=len(self.server_state.connections))
        for task in tasks:
            task.cancel()
        await self._wait_until(self._has_no_connections, time.monotonic() + _LINGER_S)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    def _has_no_connections(self) -> bool:
        return not self.server_state.connections

    async def _wait_until(self, is_done: Callable[[], bool], end_at: float) -> bool:
        """Waits until a condition holds or the time is over; returns whether it held.

        A turn of the event loop comes before each decision, so that what clients have sent is read first, also if the
        process was paused for all of the time.
        """
        while True:
            is_over = time.monotonic() >= end_at
            await asyncio.sleep(_CHECK_S)
            if is_done() or is_over:
                return is_done()


def on_sighup(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> None:
    """Calls `reload` on SIGHUP, if the platform has that signal and this is the main thread."""
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, reload)
