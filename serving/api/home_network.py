"""Where other devices of the home network reach the service, for the person who starts it on a terminal."""

import io
import socket
from contextlib import suppress
from typing import Final, TextIO

_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})
_ELSEWHERE: Final = ("192.0.2.1", 9)  # reserved for documentation (RFC 5737); nothing is sent there
_WHITE_ON_BLACK: Final = "\033[97;40m"  # readers expect a dark code on light; terminals are of either kind
_PLAIN: Final = "\033[0m"


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
        terminal.writelines(f"{_WHITE_ON_BLACK}{line}{_PLAIN}\n" for line in drawn.getvalue().splitlines())
    terminal.flush()
