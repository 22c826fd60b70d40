"""Where requests may come from: web pages of other origins (CORS), and proxies that name the client's address."""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from litestar.config.cors import CORSConfig

from models.errors import InputError

# The form in which browsers send the header Origin (RFC 6454, 6.1): lower case, no path, no default port.
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_DEFAULT_PORTS: Final = {("http", "80"), ("https", "443")}
_ALLOWED_HEADERS: Final = ["Authorization", "X-API-Key", "Content-Type", "Prefer", "X-Request-ID"]
_EXPOSED_HEADERS: Final = ["X-Request-ID", "Retry-After", "Preference-Applied", "RateLimit", "RateLimit-Policy"]
_MAPPED: Final = "::ffff:"  # prefix of an IPv4 address on a dual-stack socket, RFC 4291, 2.5.5.2
_MAPPED_BITS: Final = 96
_MAX_AGE_S: Final = 7_200  # Chromium caches a preflight response no longer than this


def cors_config(origins: Sequence[str], *, has_keys: bool) -> CORSConfig | None:
    """Returns Litestar's CORS configuration, or None if no origin is configured.

    Exact origins such as https://garden.example are allowed, or "*" alone for every origin. "*" is refused while the
    service requires API keys, because a page of an unknown origin should not handle keys.

    Raises:
        InputError: An origin is not in the form that browsers send, or "*" is not allowed.
    """
    if not origins:
        return None
    if tuple(origins) == ("*",):
        if has_keys:
            raise InputError(
                '--cors-origins may not be "*" while API keys are set',
                limit="exact origins",
                remedy="name the origins of the pages that use the keys",
            )
    else:
        for origin in origins:
            _require_origin(origin)
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=_EXPOSED_HEADERS,
        max_age=_MAX_AGE_S,
    )


def refused_preflight(config: CORSConfig, origin: str | None, method: str | None, headers: str) -> str | None:
    """Returns what a preflight request may not ask for, or None if it may, or if it is none.

    The arguments are its headers Origin, Access-Control-Request-Method and Access-Control-Request-Headers.
    """
    if origin is None:
        return None
    if not config.is_origin_allowed(origin):
        return "requests from this origin"
    if method and method not in config.allow_methods:
        return "requests of this method"
    allowed = config.preflight_headers["Access-Control-Allow-Headers"].lower().split(", ")
    if any(name.strip().lower() not in allowed for name in headers.split(",") if name.strip()):
        return "these headers"
    return None


def headers_for_pages(config: CORSConfig | None, request: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers with which a page of an allowed origin can read a response that Litestar has not seen."""
    origin = dict(request).get(b"origin", b"").decode("latin-1")
    if origin and config and config.is_origin_allowed(origin):
        return {"Access-Control-Allow-Origin": origin, **config.simple_headers}  # the latter has "*" for all origins
    return {}


def _require_origin(origin: str) -> None:
    match = _ORIGIN.fullmatch(origin)
    if match is None or (match[1], match[2]) in _DEFAULT_PORTS:
        raise InputError(
            "--cors-origins contains an invalid origin",
            value=repr(origin[:80]),
            limit="scheme://host or scheme://host:port in lower case, without a path or the scheme's default port",
            remedy="copy the value of window.origin from the page's console",
        )


def forwarded_allow_ips(proxies: Sequence[str]) -> list[str]:
    """Returns the networks for uvicorn's setting of this name, from addresses such as 10.0.0.7 or 10.0.0.0/24.

    uvicorn takes the rightmost address in X-Forwarded-For that is not a trusted proxy's; only a trusted proxy can have
    written that one. It treats a mistyped address as a host name that never matches, so the setting is validated here.

    Raises:
        InputError: An entry is neither an address nor a network, or contains every address. Trusting every address
            would let clients choose the address by which they are limited.
    """
    return [str(network) for proxy in proxies for network in _with_mapped(_network(proxy))]


def _network(proxy: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(proxy)
    except ValueError:
        if proxy != "*":
            raise InputError(
                "--trusted-proxies contains neither an address nor a network",
                value=repr(proxy[:80]),
                limit="an address such as 10.0.0.7 or a network such as 10.0.0.0/24, with no host bits set",
                remedy="name the proxies' own addresses",
            ) from None
    else:
        if network.prefixlen > 0:
            return network
    raise InputError(
        "--trusted-proxies may not trust everybody, because clients could then choose their address",
        value=proxy,
        remedy="name the proxies' own addresses or networks",
    )


def _with_mapped(network: IPv4Network | IPv6Network) -> list[IPv4Network | IPv6Network]:
    """Adds the IPv4-mapped IPv6 form of an IPv4 network."""
    if isinstance(network, IPv6Network):
        return [network]
    return [network, IPv6Network(f"{_MAPPED}{network.network_address}/{_MAPPED_BITS + network.prefixlen}")]
