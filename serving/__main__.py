"""The program `python -m serving`.

On SIGTERM the service reports that it is not ready, keeps accepting requests for `--drain-s` seconds, finishes those in
progress and exits with code 0, `--shutdown-s` seconds after the signal at the latest. SIGINT does the same without the
wait. SIGHUP reloads the bundle.
"""

import io
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final, TextIO

from models.program import clear_errors, end_process, explain_missing_packages

explain_missing_packages("make serve")

import structlog
import uvicorn
from litestar.types import Receive, Scope, Send

from models.errors import InputError, one_line
from serving.access.origins import forwarded_allow_ips
from serving.api.protocol import HEADER_S, make_protocol
from serving.api.server import DrainingServer
from serving.app import Service, create_app
from serving.metrics import Metrics, configure_logging
from serving.settings import Settings, load_settings, metrics_address

_BACKLOG: Final = 2048  # connections that the kernel queues while the event loop is busy; uvicorn's default
_MAX_SCRAPERS: Final = 32  # connections to the port of --metrics at the same time; Prometheus needs one
_PLAIN: Final[dict[str, Any]] = {"access_log": False, "log_config": None, "ws": "none", "server_header": False}
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})
_ELSEWHERE: Final = ("192.0.2.1", 9)  # reserved for documentation (RFC 5737); nothing is sent there
_WHITE_ON_BLACK: Final = "\033[97;40m"  # readers expect a dark code on light; terminals are of either kind
_DEFAULT_COLORS: Final = "\033[0m"
_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the service; exits with code 0 after a signal, and with code 1 and one line if it cannot start."""
    # These handlers act before the server installs its own and after it removes them.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the application installs its handler
    with clear_errors():
        settings = load_settings(arguments)
        configure_logging()
    try:
        with clear_errors():
            _serve(settings)
    except SystemExit as ended:
        end_process(int(ended.code or 0))
    end_process(0)


def _serve(settings: Settings) -> None:
    failures: list[Exception] = []

    def stop(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    service = create_app(settings, on_failure=stop)
    with _listen(settings.host, settings.port, "--port") as listening:
        if own := metrics_address(settings):
            _serve_metrics(service.metrics, *own)
        host, port = listening.getsockname()[:2]

        def tell() -> None:
            _log.info("listening", url=_url(host, port))
            if sys.stdout.isatty() and (url := home_url(host, port)) is not None:
                show_home_url(url, sys.stdout)

        server = DrainingServer(
            _server_config(service, settings), service.live_bundle.drain, settings.drain_s, settings.shutdown_s, tell
        )
        server.run(sockets=[listening])
    if failures:
        if isinstance(failures[0], InputError):
            raise failures[0]
        raise InputError(
            "the network does not run",
            value=one_line(failures[0], 1000),  # ONNX Runtime's messages have several lines
            remedy="fetch or export the bundle again",
        )


def _server_config(service: Service, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        service.app,
        http=make_protocol(HEADER_S, settings.upload_s, lambda code: service.metrics.refusals.labels(code).inc()),
        **_PLAIN,  # serving.api.middleware logs the requests
        lifespan="on",
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=forwarded_allow_ips(settings.trusted_proxies),
        timeout_graceful_shutdown=1,  # for requests that do not end even when DrainingServer cancels them
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # asyncio's timers take fractions
    )


def _listen(host: str, port: int, flag: str) -> socket.socket:
    """Opens the port before uvicorn starts, so that a port in use gives one clear error; with "::" for IPv4 too."""
    is_ipv6 = ":" in host
    try:
        listening = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise InputError(
            f"port {port} of {host} cannot be opened",
            value=error.strerror or error,
            remedy=f"choose another with {flag}",
        ) from error
    # Connections inherit this. uvloop sets it itself, asyncio's own loop only for sockets that name their protocol.
    # Without it the body of each answer waits until the client has acknowledged the head, which it delays.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _serve_metrics(metrics: Metrics, host: str, port: int, header_s: float = HEADER_S) -> str:
    """Serves the metrics at every path, in a thread that ends with the process; returns the URL."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        text = metrics.recent_text()
        headers = [(b"content-type", metrics.media_type.encode()), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text, "more_body": False})

    listening = _listen(host, port, "--metrics")
    server = uvicorn.Server(
        uvicorn.Config(
            answer,
            http=make_protocol(header_s, header_s),
            **_PLAIN,
            limit_concurrency=_MAX_SCRAPERS + 1,  # uvicorn refuses from this number on
            lifespan="off",
            proxy_headers=False,
        )
    )
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    url = f"{_url(*listening.getsockname()[:2])}/metrics"
    _log.info("serving_metrics", url=url)
    return url


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def home_url(host: str, port: int) -> str | None:
    """Returns the address that a phone at home opens, or None if the service listens on one address or has no network.

    Args:
        host: Address on which the service listens.
        port: Its port.
    """
    if host not in _EVERY_ADDRESS:
        return None
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)  # only chooses the address that packets would come from
        return f"http://{probe.getsockname()[0]}:{port}"
    return None


def show_home_url(url: str, terminal: TextIO) -> None:
    """Writes the address as text and as a QR code."""
    import segno

    drawn = io.StringIO()
    segno.make_qr(url).terminal(out=drawn, border=2, compact=True)
    terminal.write(f"In your home network: {url}\n")
    with suppress(UnicodeEncodeError):  # a terminal without block characters has the address alone
        terminal.writelines(f"{_WHITE_ON_BLACK}{line}{_DEFAULT_COLORS}\n" for line in drawn.getvalue().splitlines())
    terminal.flush()


def _exit(_signal: int, _frame: FrameType | None) -> None:
    end_process(0)


if __name__ == "__main__":
    main()
