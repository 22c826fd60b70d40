"""What a client is given, checked before it sends anything."""

import re
from typing import Final

import httpx

from models.errors import InputError
from serving.schemas import MAX_IMAGES

LEAST_SIDE_PX: Final = 224  # the input of common networks; smaller pictures lose what the network looks at
_MOST_TIMEOUT_S: Final = 86_400.0


def checked_url(text: str) -> httpx.URL:
    """Returns the address of a service.

    Raises:
        InputError: It is no address of HTTP, or has a query or a fragment.
    """
    try:
        url = httpx.URL(text)
        is_address = url.scheme in {"http", "https"} and bool(url.host) and 0 < (url.port or 80) < 65_536
    except (httpx.InvalidURL, ValueError):  # ValueError: a host name that IDNA does not allow
        url, is_address = httpx.URL(), False
    if not is_address or url.query or url.fragment:
        raise InputError(
            "this is not the address of a service",
            value=repr(text.rpartition("@")[2]),  # without a password
            limit="http://HOST:PORT or https://HOST",
            remedy="give the address that the service shows when it starts",
        )
    return url


def key_header(key: str) -> dict[str, str]:
    """Returns the header with an API key; none if the key is empty.

    Raises:
        InputError: No header can hold the key. The message does not show it.
    """
    if bad := re.search(r"[^!-~]", key):
        raise InputError(
            "the API key has a character that no key has",
            value=f"U+{ord(bad[0]):04X} as character {bad.start() + 1} of {len(key)}",
            limit="visible ASCII characters",
            remedy="copy the key again, without spaces and line breaks",
        )
    return {"Authorization": f"Bearer {key}"} if key else {}


def check_limits(timeout_s: float, max_side_px: int | None) -> None:
    """Checks the limits of a client.

    Raises:
        InputError: One is out of range.
    """
    if not 0 < timeout_s <= _MOST_TIMEOUT_S:
        raise InputError(
            "timeout_s is out of range",
            value=timeout_s,
            limit=f"more than 0 s and at most {_MOST_TIMEOUT_S:,.0f} s",
            remedy="give the time that an answer may take, such as 120",
        )
    if max_side_px is not None and max_side_px < LEAST_SIDE_PX:
        raise InputError(
            "max_side_px is too small",
            value=max_side_px,
            limit=f"at least {LEAST_SIDE_PX} px",
            remedy="give a longer side, such as 1600, or leave it out to send photographs as they are",
        )


def check_number(pictures: int) -> None:
    """Checks the number of pictures of one plant, before any is read.

    Raises:
        InputError: There are none, or more than the service takes.
    """
    if not 1 <= pictures <= MAX_IMAGES:
        raise InputError(
            "one question is about the photographs of one plant",
            value=f"{pictures} photographs",
            limit=f"1 to {MAX_IMAGES}",
            remedy="ask once for each plant, or name a whole folder with `python -m serving.identify_folder`",
        )
