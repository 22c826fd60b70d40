"""The rate limit: one token bucket per client, with bounded memory for all of them."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

from serving.errors import RateLimited

_MAX_BUCKETS: Final = 10_000  # about 2 MB
_HOST_BITS: Final = 64  # of an IPv6 address; a provider assigns at least a /64 to each customer, RFC 6177
_ROUNDING_S: Final = 1e-6  # tolerance for sums of floats, so that a retry after Retry-After seconds succeeds


class RateLimiter:
    """Token buckets: `burst` requests at once, then `rate_per_minute`.

    Each bucket is stored as one number, the time at which it is full again (the generic cell rate algorithm). The cost
    of a request does not depend on the number of clients. A client whose bucket was dropped starts with a full one, so
    dropping never causes a refusal.

    Args:
        rate_per_minute: Tokens added to each bucket per minute.
        burst: Capacity of a bucket, tokens.
        clock: A monotonic clock, seconds.
    """

    def __init__(self, rate_per_minute: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._token_s = 60.0 / rate_per_minute
        self._burst = burst
        self._burst_s = burst * self._token_s
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()  # least recently used first

    def acquire(self, client: str, num_tokens: float = 1.0) -> dict[str, str]:
        """Takes tokens from the client's bucket.

        Returns:
            The headers RateLimit-Policy and RateLimit of the response (draft-ietf-httpapi-ratelimit-headers-11): q
            tokens in w seconds; r of them are left, and the next one comes after t seconds.

        Raises:
            RateLimited: The bucket has too few; the error gives the time until it has enough.
        """
        now = self._clock()
        cost_s = num_tokens * self._token_s
        full_at = max(self._full_at.pop(client, now), now) + cost_s
        wait_s = full_at - now - self._burst_s
        refused = wait_s > _ROUNDING_S
        self._full_at[client] = full_at - cost_s if refused else full_at
        self._evict(now)
        quota = self._quota(self._full_at[client] - now if client in self._full_at else 0.0)
        if refused:
            error = RateLimited.with_retry("the client exceeds the rate that this service allows", wait_s - _ROUNDING_S)
            error.quota = quota
            raise error
        return quota

    def _quota(self, used_s: float) -> dict[str, str]:
        num_used = math.ceil((used_s - _ROUNDING_S) / self._token_s)
        next_s = max(1, math.ceil(used_s - (num_used - 1) * self._token_s - _ROUNDING_S))
        return {
            "RateLimit-Policy": f'"client";q={self._burst};w={math.ceil(self._burst_s - _ROUNDING_S)}',
            "RateLimit": f'"client";r={self._burst - num_used};t={next_s}',
        }

    def _evict(self, now: float) -> None:
        """Drops the least recently used buckets that are full again, and others while there are too many."""
        while self._full_at:
            client, full_at = next(iter(self._full_at.items()))
            if full_at > now and len(self._full_at) <= _MAX_BUCKETS:
                return
            del self._full_at[client]


def client_network(address: str | None) -> str:
    """Returns the name of a client's bucket: its IPv4 address, or the /64 network of its IPv6 address.

    Args:
        address: The address that the server or a proxy gives; all invalid addresses count as one client.
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
