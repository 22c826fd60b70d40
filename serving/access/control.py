"""Authenticates a request by its API key and applies the rate limit, before its body is read."""

from collections.abc import Mapping
from typing import Final

import msgspec
from litestar.datastructures import Headers

from models.errors import InputError
from serving.access.keys import ApiKeys
from serving.access.rates import RateLimiter, client_network
from serving.errors import Unauthorized

_SEND_A_KEY: Final = "send a key in the header `Authorization: Bearer KEY` or `X-API-Key: KEY`"
_MAKE_AN_ADMIN_KEY: Final = (
    "make one with `python -m serving.access.keys NAME --admin`, store its line where the service reads its API keys, "
    "and restart the service"
)


# A file of the page, the metrics or the model's description, as a part of a request for an answer. The page loads 27,
# which must fit into a burst of one.
_OPEN_REQUEST: Final = 0.02


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

    Args:
        keys: The valid API keys; None makes the service open to everybody.
        rate_limiter: Limits the requests of each client; None sets no limit.
    """

    def __init__(self, keys: ApiKeys | None = None, rate_limiter: RateLimiter | None = None) -> None:
        self._keys, self._rate_limiter = keys, rate_limiter

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

    def authorize(self, headers: Headers, address: str | None) -> Client:
        """Checks the key of a request. Its rate is checked by `limit`, once the log knows the client.

        Args:
            headers: The request's headers.
            address: The client's address, as the connection or a trusted proxy gives it.

        Raises:
            Unauthorized: The service requires a key, and the request has no valid one.
            RateLimited: The same, and the address has used up its rate.
        """
        by_address = f"address {client_network(address)}"
        if self._keys is None:
            return Client("", is_admin=False, identity=by_address)
        secret = _secret(headers)
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
        """Counts a request for the rate of a client, named by its `identity`.

        Returns:
            Headers that say what it may still send; none without a rate limit.

        Raises:
            RateLimited: The client has used up its rate.
        """
        return {} if self._rate_limiter is None else self._rate_limiter.acquire(client, num_requests)

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
