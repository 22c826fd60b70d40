"""Admission control: a request that cannot be answered in time is refused before its body is read.

The expected wait of a picture is the number of pictures ahead of it, times the measured seconds per picture. Clients
take turns: if k pictures of its own client are ahead of a picture, at most k + 1 pictures of each other client are. The
order is by virtual starts: when the work on a picture should start, seconds, if none were late.

A client may have everything while it is alone. While another client is there, it may have a share of the requests, the
bytes of uploads and the decoders. If the service is full, the client that holds the most gives up first. All memory
here is bounded by the requests in progress.
"""

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from serving.errors import Overloaded
from serving.metrics import Metrics

_PRESENT_S: Final = 10.0  # how long a client counts as there after its last request
_SMOOTHING: Final = 0.1  # weight of the newest answer: the average follows a change within about twenty answers
# An upload that has begun counts as one picture for this long after its admission. A slow one then counts as none until
# it is complete, so that it does not keep other requests out.
_UPLOAD_COUNTS_S: Final = 1.0
_MIN_QUEUE: Final = 7  # pictures that may always be ahead, so that even a slow machine serves eight clients


class Claim(Protocol):
    """What takes a part of a quota for its client, such as a request."""

    client: str


_Claim = TypeVar("_Claim", bound=Claim)


class Quota(Generic[_Claim]):
    """How much of one thing all clients together may hold, and who holds how much of it.

    Args:
        capacity: The most that all clients may hold; a single claim may exceed it.
        share: Share of the capacity that a client may hold while it is not alone; its only claim may exceed it.
    """

    def __init__(self, capacity: int, share: float) -> None:
        self._capacity = capacity
        self._share = share
        self._by_claim: dict[_Claim, int] = {}
        self._by_client: Counter[str] = Counter()
        self._total = 0

    @property
    def clients(self) -> AbstractSet[str]:
        """The clients that hold anything."""
        return self._by_client.keys()

    def take(self, claim: _Claim, amount: int) -> None:
        """Adds to what a claim has."""
        self._by_claim[claim] = self._by_claim.get(claim, 0) + amount
        self._by_client[claim.client] += amount
        self._total += amount

    def release(self, claim: _Claim) -> None:
        """Takes away all that a claim has."""
        amount = self._by_claim.pop(claim, 0)
        self._total -= amount
        self._by_client[claim.client] -= amount
        if not self._by_client[claim.client]:
            del self._by_client[claim.client]

    def exceeds_share(self, claim: _Claim, amount: int) -> bool:
        """Returns whether the client of a claim would have more than its share with so much more."""
        held = self._by_client[claim.client]
        return held > self._by_claim.get(claim, 0) and held + amount > self._share * self._capacity

    def is_full(self, claim: _Claim, amount: int) -> bool:
        """Returns whether the capacity does not suffice for so much more."""
        return self._total > self._by_claim.get(claim, 0) and self._total + amount > self._capacity

    def first_to_give_up(self, claim: _Claim, amount: int) -> _Claim | None:
        """Returns the newest claim of the client that holds the most.

        None if that client holds no more than the client of `claim` would with so much more.
        """
        largest = max(self._by_client, key=self._by_client.__getitem__)
        if self._by_client[largest] <= self._by_client[claim.client] + amount:
            return None
        return next(other for other in reversed(self._by_claim) if other.client == largest)


class _QueuedPicture:
    """A picture that waits in the queue, and then holds a decoder."""

    def __init__(self, client: str, virtual_start_s: float) -> None:
        self.client = client
        self.virtual_start_s = virtual_start_s
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class DecoderQueue:
    """Gives the decoders to pictures in the order of their virtual starts, to each client no more than its share.

    Decodes cannot be interrupted, so a client that is not alone leaves the rest of the decoders free even while it is
    the only one that waits.

    Args:
        num_decoders: Pictures decoded at the same time.
        share: Share of the decoders that a client may hold while it is not alone, at least one decoder.
        is_alone: Whether a client is alone.
    """

    def __init__(self, num_decoders: int, share: float, is_alone: Callable[[str], bool]) -> None:
        self._decoders = Quota[_QueuedPicture](num_decoders, share)
        self._is_alone = is_alone
        self._waiting: list[_QueuedPicture] = []

    @asynccontextmanager
    async def take(self, client: str, virtual_start_s: float) -> AsyncIterator[None]:
        """Waits for a decoder, which is free again when the context ends; the earliest start comes first."""
        queued = _QueuedPicture(client, virtual_start_s)
        insort(self._waiting, queued, key=lambda other: other.virtual_start_s)
        self._grant()
        try:
            await queued.granted
            yield
        finally:
            if queued in self._waiting:  # cancelled
                self._waiting.remove(queued)
            self._decoders.release(queued)
            self._grant()

    def _grant(self) -> None:
        for queued in self._waiting[:]:
            if self._decoders.is_full(queued, 1):
                return
            is_within_share = self._is_alone(queued.client) or not self._decoders.exceeds_share(queued, 1)
            if not queued.granted.done() and is_within_share:
                self._waiting.remove(queued)
                self._decoders.take(queued, 1)
                queued.granted.set_result(None)


class ServiceTime:
    """Average seconds per picture while the service is busy: the inverse of the throughput."""

    def __init__(self, seconds_per_picture: float = 0.2) -> None:
        self.seconds_per_picture = seconds_per_picture
        self._last_end_at = 0.0

    def record_end(self, num_pictures: int, start: float, now: float, *, answered: bool) -> None:
        """Updates the average with one request whose work could start at `start` and has ended `now`.

        A request without an answer can only raise the average: if its pictures were refused at once, that says nothing
        about others, but if they kept the service busy for long, it does.
        """
        seconds = (now - max(start, self._last_end_at)) / num_pictures
        if answered or seconds > self.seconds_per_picture:
            self._last_end_at = now
            self.seconds_per_picture += _SMOOTHING * (seconds - self.seconds_per_picture)


class AdmissionLimits(msgspec.Struct, frozen=True):
    """How much work the service accepts."""

    num_requests: int
    """Most requests at the same time, uploads included."""
    num_bytes: int
    """Most bytes of uploads at the same time; a single request may exceed it."""
    wait_s: float
    """Longest expected wait, seconds; a wait behind seven pictures or fewer is always accepted."""
    num_decoders: int = 1
    """Pictures decoded at the same time."""
    client_share: float = 1.0
    """Share of the requests, the bytes and the decoders that a client may have while it is not alone."""


class AdmittedRequest:
    """An identify request between its admission and its response."""

    def __init__(self, client: str, now: float) -> None:
        self.client = client
        self.arrived_at = now
        self.has_begun = False
        """Whether a part of its body has arrived."""
        self.num_pictures: int | None = None
        """None until the body has been read."""
        self.stage = "decode"
        """What it waits for, once the body has been read: `decode` or `run`."""
        self.work_start = now
        self.virtual_starts_s: Sequence[float] = ()
        """One for each picture, once the body has been read; the earliest comes first."""
        self.revocation = asyncio.timeout(None)
        """Cancels the request when it has to give way to another client."""

    def num_pictures_expected(self, now: float) -> int:
        """Returns how many pictures the request adds to the work; an upload in its first second counts as one."""
        if self.num_pictures is not None:
            return self.num_pictures
        return int(self.has_begun and now - self.arrived_at < _UPLOAD_COUNTS_S)


class Admission:
    """Admits or refuses requests."""

    def __init__(self, limits: AdmissionLimits, metrics: Metrics, service_time: ServiceTime | None = None) -> None:
        self._limits = limits
        self._metrics = metrics
        self.service_time = service_time or ServiceTime()
        self._admitted: set[AdmittedRequest] = set()
        self._latest: list[tuple[str, float]] = []  # the two clients that were seen last tell whether one is alone
        self._requests = Quota[AdmittedRequest](limits.num_requests, limits.client_share)
        self._bytes = Quota[AdmittedRequest](limits.num_bytes, limits.client_share)
        self._last_answered_s = 0.0  # the latest virtual start of a picture that was answered
        self.decoding = DecoderQueue(limits.num_decoders, limits.client_share, self._is_alone)
        """The order in which pictures are decoded."""

    @property
    def num_pictures(self) -> int:
        """Pictures of all admitted requests whose bodies have been read."""
        return sum(request.num_pictures or 0 for request in self._admitted)

    @asynccontextmanager
    async def enter(self, client: str) -> AsyncIterator[AdmittedRequest]:
        """Admits a request of a client until the context ends.

        Raises:
            Overloaded: The request could not be answered in time, or it had to give way to another client.
        """
        request = self._admit(client)
        try:
            async with request.revocation:
                yield request
        except TimeoutError:
            if request.revocation.expired():
                raise _overloaded(0.0) from None
            raise
        finally:
            self._release(request)

    def hold(self, request: AdmittedRequest, num_bytes: int) -> None:
        """Notes that a part of a request's body has arrived.

        Raises:
            Overloaded: There is no memory for it.
        """
        if num_bytes and request in self._admitted:
            self._make_room(self._bytes, request, num_bytes)
            self._bytes.take(request, num_bytes)
            request.has_begun = True

    def start_work(self, request: AdmittedRequest, num_pictures: int, deadline_s: float) -> None:
        """Accepts the work of a request whose body has been read, with its deadline in seconds from now.

        Raises:
            Overloaded: The pictures ahead and its own would take longer than the deadline.
        """
        now = time.monotonic()
        waits_s = self._expected_waits_s(request, num_pictures, now)
        expected_s = waits_s[-1] + self.service_time.seconds_per_picture
        if expected_s > deadline_s and waits_s[0]:
            raise _overloaded(expected_s - deadline_s)
        request.num_pictures = num_pictures
        request.work_start = now
        start_s = self._first_virtual_start_s(now)
        request.virtual_starts_s = [start_s + wait_s for wait_s in waits_s]

    def end_work(self, request: AdmittedRequest, *, answered: bool) -> None:
        """Updates service time and virtual time with a request whose work, if it was started, has ended."""
        if request.num_pictures:
            if answered:
                self._last_answered_s = max(self._last_answered_s, request.virtual_starts_s[-1])
            self.service_time.record_end(request.num_pictures, request.work_start, time.monotonic(), answered=answered)

    def _admit(self, client: str) -> AdmittedRequest:
        now = time.monotonic()
        request = AdmittedRequest(client, now)
        self._latest = [(client, now), *(seen for seen in self._latest if seen[0] != client)][:2]
        wait_s = self._expected_waits_s(request, 1, now)[0]
        longest_s = max(self._limits.wait_s, _MIN_QUEUE * self.service_time.seconds_per_picture)
        if wait_s > longest_s:
            raise _overloaded(wait_s - longest_s)
        self._make_room(self._bytes, request, 0)
        self._make_room(self._requests, request, 1)
        self._requests.take(request, 1)
        self._admitted.add(request)
        self._metrics.admitted.set(len(self._admitted))
        return request

    def _release(self, request: AdmittedRequest) -> None:
        self._admitted.discard(request)
        self._requests.release(request)
        self._bytes.release(request)
        self._metrics.admitted.set(len(self._admitted))

    def _make_room(self, quota: Quota[AdmittedRequest], request: AdmittedRequest, amount: int) -> None:
        """Makes room for a request to take more of something, if need be at the cost of the client that has the most.

        Raises:
            Overloaded: Its own client has its share, or is the one that has the most.
        """
        if quota.exceeds_share(request, amount) and not self._is_alone(request.client):
            raise _overloaded(0.0)
        while quota.is_full(request, amount):
            other = quota.first_to_give_up(request, amount)
            if other is None:
                raise _overloaded(0.0)
            self._release(other)
            other.revocation.reschedule(0.0)

    def _is_alone(self, client: str) -> bool:
        now = time.monotonic()
        was_seen = any(other != client and now - seen_at < _PRESENT_S for other, seen_at in self._latest)
        return self._requests.clients <= {client} and not was_seen

    def _first_virtual_start_s(self, now: float) -> float:
        """Returns the virtual start of a picture that waits for none: `now`, or an earlier time if the work is late.

        Starts from `now` on would place a new client behind all late pictures of another one. Starts from the earliest
        late one on would let new pictures overtake a late one without end; so they begin after what has been answered.
        """
        starts_s = (other.virtual_starts_s[0] for other in self._admitted if other.virtual_starts_s)
        return min(now, max(min(starts_s, default=now), self._last_answered_s))

    def _expected_waits_s(self, request: AdmittedRequest, num_pictures: int, now: float) -> list[float]:
        """Returns how long each of the next pictures of a request would wait, seconds, if clients take turns."""
        ahead: Counter[str] = Counter()
        for other in self._admitted - {request}:
            ahead[other.client] += other.num_pictures_expected(now)
        own = ahead.pop(request.client, 0)
        return [
            (place + sum(min(num, place + 1) for num in ahead.values())) * self.service_time.seconds_per_picture
            for place in range(own, own + num_pictures)
        ]


def _overloaded(wait_s: float) -> Overloaded:
    return Overloaded.with_retry("more requests arrive than can be answered in time", wait_s)
