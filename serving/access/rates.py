"""How often one client may ask: a token bucket for each, in memory that does not grow with their number."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

from serving.errors import RateLimited

_MAX_BUCKETS: Final = 10_000  # about two megabytes
_HOST_BITS: Final = 64  # of an IPv6 address: one customer has at least that many, RFC 6177
_ROUNDING_S: Final = 1e-6  # of sums of times: whoever waits as long as told is let in


class Rates:
    """Token buckets: `burst` requests at once, then `rate_per_minute` of them.

    A bucket is kept as one number, the time at which it will be full again (the generic cell rate algorithm), so a
    request costs the same however many clients there are. A client whose bucket was dropped begins with a full one:
    that never refuses anybody.

    Args:
        rate_per_minute: Tokens that flow into a bucket each minute.
        burst: Tokens that a bucket holds.
        clock: Seconds that never go back.
    """

    def __init__(self, rate_per_minute: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._token_s = 60.0 / rate_per_minute
        self._most_s = burst * self._token_s
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, client: str) -> None:
        """Takes a token from the client's bucket.

        Raises:
            RateLimited: It is empty; says when the next token is there.
        """
        now = self._clock()
        full_at = max(self._full_at.pop(client, now), now) + self._token_s
        wait_s = full_at - now - self._most_s
        refused = wait_s > _ROUNDING_S
        self._full_at[client] = full_at - self._token_s if refused else full_at
        self._drop(now)
        if refused:
            raise _refusal(wait_s)

    def _drop(self, now: float) -> None:
        """Drops the buckets that have been idle until they were full, and the longest idle one of too many."""
        while self._full_at:
            client, full_at = next(iter(self._full_at.items()))
            if full_at > now and len(self._full_at) <= _MAX_BUCKETS:
                return
            del self._full_at[client]


def network_of(address: str | None) -> str:
    """What clients are told apart by: an IPv4 address, or the /64 of an IPv6 one, of which a customer has many.

    Args:
        address: As the server or a proxy gives it; anything that is no address counts as one client.
    """
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> _HOST_BITS << _HOST_BITS)}/{_HOST_BITS}"


def _refusal(wait_s: float) -> RateLimited:
    retry_after_s = max(1, math.ceil(wait_s - _ROUNDING_S))
    plural = "" if retry_after_s == 1 else "s"
    return RateLimited(
        "you ask more often than this service allows",
        retry_after_s=retry_after_s,
        remedy=f"try again in {retry_after_s} second{plural}",
    )
