"""How clients share what the service has only so much of: requests, bytes of uploads, decoders.

A client may have everything while it is alone. While another client is there, it may have a share. If the service is
full, the client that holds the most gives up first. All memory here is bounded by the requests in progress.
"""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

_PRESENT_S: Final = 10.0
"""How long a client counts as there after its last request."""


class Holder(Protocol):
    """Something that holds an amount for its client, such as a request."""

    client: str


_Holder = TypeVar("_Holder", bound=Holder)


class Presence:
    """Tells whether a client is alone. The two clients that were seen last suffice for that."""

    def __init__(self) -> None:
        self._latest: list[tuple[str, float]] = []

    def see(self, client: str, now: float) -> None:
        """Notes a request of a client."""
        self._latest = [(client, now), *(seen for seen in self._latest if seen[0] != client)][:2]

    def is_alone(self, client: str, now: float) -> bool:
        """Returns whether no other client was seen in the last ten seconds."""
        return all(other == client or now - seen_at >= _PRESENT_S for other, seen_at in self._latest)


class Holdings(Generic[_Holder]):
    """Who holds how much of one thing.

    Args:
        capacity: The most that all clients may hold; a single holder may exceed it.
        share: Share of the capacity that a client may hold while it is not alone; its only holder may exceed it.
    """

    def __init__(self, capacity: int, share: float) -> None:
        self._capacity, self._share = capacity, share
        self._by_holder: dict[_Holder, int] = {}
        self._by_client: Counter[str] = Counter()
        self._total = 0

    @property
    def clients(self) -> AbstractSet[str]:
        """The clients that hold anything."""
        return self._by_client.keys()

    def take(self, holder: _Holder, amount: int) -> None:
        """Adds to what a holder has."""
        self._by_holder[holder] = self._by_holder.get(holder, 0) + amount
        self._by_client[holder.client] += amount
        self._total += amount

    def release(self, holder: _Holder) -> None:
        """Takes away all that a holder has."""
        amount = self._by_holder.pop(holder, 0)
        self._total -= amount
        self._by_client[holder.client] -= amount
        if not self._by_client[holder.client]:
            del self._by_client[holder.client]

    def exceeds_share(self, holder: _Holder, amount: int) -> bool:
        """Returns whether the holder's client would have more than its share with so much more."""
        held = self._by_client[holder.client]
        return held > self._by_holder.get(holder, 0) and held + amount > self._share * self._capacity

    def is_full(self, holder: _Holder, amount: int) -> bool:
        """Returns whether the capacity does not suffice for so much more."""
        return self._total > self._by_holder.get(holder, 0) and self._total + amount > self._capacity

    def first_to_give_up(self, holder: _Holder, amount: int) -> _Holder | None:
        """Returns the newest holder of the client that holds the most.

        None if that client holds no more than the client of `holder` would with so much more.
        """
        largest = max(self._by_client, key=self._by_client.__getitem__)
        if self._by_client[largest] <= self._by_client[holder.client] + amount:
            return None
        return next(other for other in reversed(self._by_holder) if other.client == largest)


class _Turn:
    """A picture that waits for its turn, and then holds a decoder."""

    def __init__(self, client: str, rank: float) -> None:
        self.client, self.rank = client, rank
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turns:
    """Gives the decoders to pictures in the order of their ranks, to each client no more than its share.

    Decodes cannot be interrupted, so a client that is not alone leaves the rest of the decoders free even while it is
    the only one that waits.

    Args:
        num_decoders: Pictures decoded at the same time.
        share: Share of the decoders that a client may hold while it is not alone, at least one decoder.
        is_alone: Whether a client is alone.
    """

    def __init__(self, num_decoders: int, share: float, is_alone: Callable[[str], bool]) -> None:
        self._decoders = Holdings[_Turn](num_decoders, share)
        self._is_alone = is_alone
        self._waiting: list[_Turn] = []

    @asynccontextmanager
    async def take(self, client: str, rank: float) -> AsyncIterator[None]:
        """Waits for the turn of a picture, which ends with the context.

        Args:
            client: Whose picture it is.
            rank: The lowest rank comes first.
        """
        turn = _Turn(client, rank)
        insort(self._waiting, turn, key=lambda other: other.rank)
        self._grant()
        try:
            await turn.granted
            yield
        finally:
            if turn in self._waiting:  # cancelled
                self._waiting.remove(turn)
            self._decoders.release(turn)
            self._grant()

    def _grant(self) -> None:
        for turn in self._waiting[:]:
            if self._decoders.is_full(turn, 1):
                return
            if not turn.granted.done() and self._is_within_share(turn):
                self._waiting.remove(turn)
                self._decoders.take(turn, 1)
                turn.granted.set_result(None)

    def _is_within_share(self, turn: _Turn) -> bool:
        return self._is_alone(turn.client) or not self._decoders.exceeds_share(turn, 1)
