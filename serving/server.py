"""From the first request to the last: when the service is ready, and how it comes to its end."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, Protocol

import structlog
import uvicorn

from serving.errors import NotReady

_FIRST_REQUEST_S: Final = 1.0  # for a connection that was opened just before the end
_FIRST_REQUEST_LOOKS: Final = 20

_log = structlog.get_logger(__name__)


class Life:
    """Whether requests should come here.

    Args:
        is_warm: Whether the network is loaded and warmed up.
        has_pulse: Whether what decodes and what runs is alive.
    """

    def __init__(self, *, is_warm: Callable[[], bool], has_pulse: Callable[[], bool]) -> None:
        self._is_warm, self._has_pulse = is_warm, has_pulse
        self.is_draining = False

    def require_warm(self) -> None:
        """Checks that requests can be answered; they still are while the service comes to its end.

        Raises:
            NotReady: The warm-up is not over.
        """
        if not self._is_warm():
            raise NotReady("the network is not warmed up", retry_after_s=1, remedy="try again in a second")

    def require_ready(self) -> None:
        """Checks that requests should be sent here.

        Raises:
            NotReady: The service warms up, comes to its end, or has lost its network or its decoders.
        """
        self.require_warm()
        if self.is_draining:
            raise NotReady("the service comes to its end", retry_after_s=5, remedy="ask another instance")
        if not self._has_pulse():
            raise NotReady("the network or the decoders do not answer", retry_after_s=5, remedy="try again later")


class Ending(Protocol):
    """What is told that the end has begun."""

    is_draining: bool


class DrainingServer(uvicorn.Server):
    """Goes on accepting for a while after SIGTERM, while it already says that it is not ready.

    A load balancer needs that while to notice; uvicorn itself would refuse connections at once. SIGINT, from a
    keyboard, skips the while; a second signal ends at once.

    Args:
        config: As uvicorn has it.
        life: Told that the end has begun.
        drain_s: How long to go on accepting, seconds.
    """

    def __init__(self, config: uvicorn.Config, life: Ending, drain_s: float) -> None:
        super().__init__(config)
        self._life, self._drain_s = life, drain_s
        self._listening: list[socket.socket] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Takes SIGTERM or SIGINT; may be called between any two steps of the event loop."""
        if self._life.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._life.is_draining = True
        _log.info("draining", signal=signal.Signals(sig).name)
        if sig == signal.SIGINT or self._drain_s == 0:
            self.should_exit = True
        else:
            timer = threading.Timer(self._drain_s, self._stop_accepting)
            timer.daemon = True
            timer.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes in the connections that clients hold open already, then ends as uvicorn does."""
        for server in self.servers:
            server.close()
        for listening in self._listening:
            await self._accept_the_last(listening)
            listening.close()
        await self._wait_for_first_requests()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins as uvicorn does, and keeps the listening sockets, which would close before their queues are empty."""
        self._listening = [listening.dup() for listening in sockets or []]
        await super().startup(sockets)

    def _stop_accepting(self) -> None:
        self.should_exit = True

    async def _accept_the_last(self, listening: socket.socket) -> None:
        """Accepts what the kernel has accepted for us: closing the socket would reset these connections."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # none is left
                return
            await loop.connect_accepted_socket(self._new_protocol, connection)

    def _new_protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def _wait_for_first_requests(self) -> None:
        """Lets connections whose request is still on its way begin, since uvicorn closes them as idle."""
        for _ in range(_FIRST_REQUEST_LOOKS):
            if all(connection.cycle is not None for connection in self.server_state.connections):  # type: ignore[union-attr]
                return
            await asyncio.sleep(_FIRST_REQUEST_S / _FIRST_REQUEST_LOOKS)


def on_hangup(loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
    """Calls `reload` on SIGHUP, where there is one and this thread may have it."""
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, reload)
