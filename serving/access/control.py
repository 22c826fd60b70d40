"""Authenticates a request by its API key and applies the rate limit, before its body is read."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final

import msgspec
from litestar.datastructures import Headers

from models.errors import InputError
from serving.access.keys import ApiKeys
from serving.errors import RateLimited, Unauthorized

_MAX_BUCKETS: Final = 10_000  # about 2 MB
_HOST_BITS: Final = 64  # of an IPv6 address; a provider assigns at least a /64 to each customer, RFC 6177
_DAY_S: Final = 24 * 3600
_ROUNDING_S: Final = 1e-6  # tolerance for sums of floats, so that a retry after Retry-After seconds succeeds

_SEND_A_KEY: Final = "send a key in the header `Authorization: Bearer KEY` or `X-API-Key: KEY`"
_MAKE_AN_ADMIN_KEY: Final = (
    "make one with `python -m serving.access.keys NAME --admin`, store its line where the service reads its API keys, "
    "and restart the service"
)
# A file of the page, the metrics or the model's description, as a part of a request for an answer. The page loads 27,
# which must fit into a burst of one.
_OPEN_REQUEST: Final = 0.02


class RateLimiter:
    """Token buckets: `burst` requests at once, then `rate_per_minute`.

    Each bucket is stored as one number, the time at which it is full again (the generic cell rate algorithm). The cost
    of a request does not depend on the number of clients. A client whose bucket was dropped starts with a full one, so
    dropping never causes a refusal. Memory for all clients is bounded.
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

    All invalid addresses count as one client.
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


class Client(msgspec.Struct, frozen=True):
    """The client of an authorized request."""

    name: str
    """Name of its API key; empty where the service requires none."""
    is_admin: bool
    identity: str
    """Tells clients apart: by their API key, or else by their address. It has the rate."""


class AccessControl:
    """Authorizes requests.

    Requests with a valid key are limited per key, all others per address. Failed attempts count toward the address, so
    guessing keys is limited too. The limit of an address does not apply to a valid key; otherwise another client with
    the same address could lock out the holder of the key. An attacker gains nothing from this exception, because a key
    holds 256 random bits.

    Without keys the service is open to everybody, without a rate limiter it sets no limit.
    """

    def __init__(self, keys: ApiKeys | None = None, rate_limiter: RateLimiter | None = None) -> None:
        self._keys = keys
        self._rate_limiter = rate_limiter
        self._sent: Counter[str] = Counter()  # name of a key with a quota -> its questions of the day
        self._day = 0

    @property
    def requires_key(self) -> bool:
        """Whether requests need an API key."""
        return self._keys is not None

    def replace_keys(self, keys: ApiKeys | None) -> None:
        """Accepts other keys from now on.

        Raises:
            InputError: The service would begin or cease to require keys. A reload must not open it to everybody.
        """
        if (keys is None) != (self._keys is None):
            raise InputError(
                f"the service was started {'without' if self._keys is None else 'with'} API keys",
                value="no keys" if keys is None else "some keys",
                remedy="restart it to change that",
            )
        self._keys = keys

    def authorize(self, headers: Headers, address: str | None, secret: str | None = None) -> Client:
        """Checks the key of a request, in its headers or given. Its rate is checked by `limit`, once the log knows it.

        Raises:
            Unauthorized: The service requires a key, and the request has no valid one.
            RateLimited: The same, and the address has used up its rate.
        """
        by_address = f"address {client_network(address)}"
        if self._keys is None:
            return Client("", is_admin=False, identity=by_address)
        secret = _secret(headers) or secret
        key = None if secret is None else self._keys.find(secret)
        if key is None:
            self.limit(by_address)
            problem = "an API key is required" if secret is None else "the API key is not valid for this service"
            raise Unauthorized(problem, remedy=_SEND_A_KEY)
        return Client(key.name, key.is_admin, identity=f"key {key.name}")

    def authorize_admin(self, headers: Headers, address: str | None) -> Client:
        """Checks an admin call, which always requires an admin key.

        Raises:
            Unauthorized: The request has no admin key, or the service has no admin keys.
            RateLimited: The client has used up its rate.
        """
        if self._keys is None or not self._keys.has_admin:
            self.limit(f"address {client_network(address)}")
            raise Unauthorized("this call requires an admin key, and the service has none", remedy=_MAKE_AN_ADMIN_KEY)
        client = self.authorize(headers, address)
        if not client.is_admin:
            self.limit(client.identity)
            raise Unauthorized(
                "this call requires an admin key, and this API key is not one", remedy="send an admin key"
            )
        return client

    def limit(self, client: str, num_requests: float = 1.0) -> Mapping[str, str]:
        """Counts a request for the rate of a client; returns headers that say what it may still send.

        Raises:
            RateLimited: The client has used up its rate.
        """
        return {} if self._rate_limiter is None else self._rate_limiter.acquire(client, num_requests)

    def count_for_the_day(self, name: str) -> float:
        """Counts a question of a key that may ask about some plants a day; a page sends more requests with each.

        Returns how many it may ask about yet.

        Raises:
            RateLimited: It has asked about as many since midnight UTC, or since the service was started.
        """
        per_day = self._keys and self._keys.per_day.get(name)
        if not per_day:
            return math.inf
        day, second = divmod(int(time.time()), _DAY_S)
        if day != self._day:
            self._day = day
            self._sent.clear()
        if self._sent[name] >= per_day:
            raise RateLimited(
                "the API key has asked about as many plants as it may in a day",
                value=f"{per_day} plants since midnight UTC",
                limit=f"at most {per_day} a day",
                remedy="try again after midnight UTC, or ask the operator for more",
                retry_after_s=_DAY_S - second,
            )
        self._sent[name] += 1
        return per_day - self._sent[name]

    def limit_address(self, address: str | None) -> None:
        """Counts a request that needs no key, such as a file of the page. Their rate is apart from that of answers.

        Raises:
            RateLimited: The address has used up its rate.
        """
        self.limit(f"page of address {client_network(address)}", _OPEN_REQUEST)


def _secret(headers: Headers) -> str | None:
    """Returns the key in the headers, or None if there is no key or more than one.

    X-API-Key takes precedence, because a proxy in front may use Authorization for itself.
    """
    sent = headers.getall("x-api-key", []) or headers.getall("authorization", [])
    if len(sent) != 1:
        return None
    if "x-api-key" in headers:
        return sent[0].strip()
    scheme, _, credentials = sent[0].strip().partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None
