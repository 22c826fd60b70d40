"""Which web pages of other origins may ask (CORS): the ones that were named, and no others."""

import re
from collections.abc import Sequence
from typing import Final

from litestar.config.cors import CORSConfig

from models.errors import InputError

# As browsers write the header Origin (RFC 6454, 6.1): lower case, no path, no port where it is the scheme's own.
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_OWN_PORTS: Final = {("http", "80"), ("https", "443")}
_ALLOWED_HEADERS: Final = ["Authorization", "X-API-Key", "Content-Type", "Prefer", "X-Request-ID"]
_EXPOSED_HEADERS: Final = ["X-Request-ID", "Retry-After", "Preference-Applied"]
_MAX_AGE_S: Final = 7_200  # the longest that Chromium keeps a preflight's answer


def cors_config(origins: Sequence[str], *, has_keys: bool) -> CORSConfig | None:
    """Gives what Litestar lets pages of other origins do, or nothing where none was named.

    Args:
        origins: Exact origins, such as https://garden.example; or only "*", for every page there is.
        has_keys: Whether the service asks for API keys: a key does not belong into pages of anybody.

    Raises:
        InputError: An origin is not as browsers write it, or "*" is not allowed.
    """
    if not origins:
        return None
    if tuple(origins) == ("*",):
        _require_open(has_keys=has_keys)
    else:
        for origin in origins:
            _require_origin(origin)
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=_EXPOSED_HEADERS,
        max_age=_MAX_AGE_S,
    )


def _require_open(*, has_keys: bool) -> None:
    if has_keys:
        raise InputError(
            'the setting cors_origins may not be "*" while API keys are set',
            limit="exact origins",
            remedy="name the origins of the pages that use the keys",
        )


def _require_origin(origin: str) -> None:
    found = _ORIGIN.fullmatch(origin)
    if found is None or (found[1], found[2]) in _OWN_PORTS:
        raise InputError(
            "the setting cors_origins holds what is no origin as browsers write it",
            value=repr(origin[:80]),
            limit="scheme://host or scheme://host:port, in lower case, with neither a path nor the scheme's own port",
            remedy="write it as the page's console shows window.origin",
        )
