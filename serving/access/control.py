"""Lets a request in, before its body is read, or refuses it: by its key and by how often its client asks."""

from typing import Final

import msgspec
from litestar.datastructures import Headers

from serving.access.keys import Keys
from serving.access.rates import Rates, network_of
from serving.errors import Unauthorized

_SEND_A_KEY: Final = "send a key in the header `Authorization: Bearer KEY` or `X-API-Key: KEY`"
_MAKE_AN_ADMIN_KEY: Final = (
    "make one with `python -m serving.access.keys NAME --admin`, store its line where the service reads its API keys, "
    "and start the service again"
)


class Client(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    """Name of its key; empty where the service asks for none."""
    is_admin: bool


class Gate:
    """The first thing that a request meets.

    Whoever has a key is limited by it, everybody else by address. Wrong and missing keys count for the address, so that
    guessing is limited too; they never hold up a right key, or a neighbor at the same address could lock its holder
    out. That costs nothing: nobody guesses 256 random bits.

    Args:
        keys: The keys that count; without any, everybody may ask.
        rates: How often each client may ask; without it, as often as it likes.
    """

    def __init__(self, keys: Keys | None = None, rates: Rates | None = None) -> None:
        self._keys, self._rates = keys, rates

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed to enter."""
        return self._keys is not None

    def enter(self, headers: Headers, address: str | None) -> Client:
        """Lets a client in.

        Args:
            headers: Of its request.
            address: Its own, or what a trusted proxy says that it is.

        Raises:
            Unauthorized: Keys are asked for, and it has none that counts.
            RateLimited: It asks too often.
        """
        if self._keys is None:
            self._limit_address(address)
            return Client("", is_admin=False)
        secret = _secret(headers)
        key = None if secret is None else self._keys.find(secret)
        if key is None:
            self._limit_address(address)
            problem = "an API key is needed here" if secret is None else "the API key is not one of this service"
            raise Unauthorized(problem, remedy=_SEND_A_KEY)
        self._limit(f"key {key.name}")
        return Client(key.name, key.is_admin)

    def enter_admin(self, headers: Headers, address: str | None) -> Client:
        """Lets a client in to what changes the service; that always takes an admin key.

        Raises:
            Unauthorized: It has none, or none was made yet.
            RateLimited: It asks too often.
        """
        if self._keys is None or not self._keys.has_admin:
            self._limit_address(address)
            raise Unauthorized("this service has no admin key, which this call needs", remedy=_MAKE_AN_ADMIN_KEY)
        client = self.enter(headers, address)
        if not client.is_admin:
            raise Unauthorized("this API key is no admin key, which this call needs", remedy="send an admin key")
        return client

    def _limit_address(self, address: str | None) -> None:
        self._limit(f"address {network_of(address)}")

    def _limit(self, client: str) -> None:
        if self._rates is not None:
            self._rates.take(client)


def _secret(headers: Headers) -> str | None:
    """The key that was sent, if one was, and one only.

    X-API-Key goes first: a proxy in front may use Authorization for itself.
    """
    sent = headers.getall("x-api-key", []) or headers.getall("authorization", [])
    if len(sent) != 1:
        return None
    if "x-api-key" in headers:
        return sent[0].strip()
    scheme, _, credentials = sent[0].strip().partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None
