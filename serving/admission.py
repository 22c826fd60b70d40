"""Bounded work: a request that cannot be answered in time is refused at once, before its body is read.

What is ahead of a request, in pictures, times the pace at which answers leave, is how long it would wait.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from serving.errors import Overloaded
from serving.metrics import Metrics

_SMOOTHING: Final = 0.1  # share of the newest answer in the pace: a change is followed within some twenty answers
_UPLOAD_COUNTS_S: Final = 1.0  # a slower upload is no work ahead of anybody until it is complete
_LEAST_AHEAD: Final = 7  # pictures that may always be ahead: eight clients are served, however slow the machine


class Pace:
    """Seconds from one answered picture to the next while there is work: the inverse of the throughput.

    Args:
        seconds: A first guess, until answers tell.
    """

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds = seconds
        self._last_answer = 0.0

    def answered(self, num_pictures: int, began: float, now: float) -> None:
        """Learns from an answer.

        Args:
            num_pictures: Pictures in it.
            began: When its work could begin, on the clock of `time.monotonic`.
            now: When it was there.
        """
        busy_s = now - max(began, self._last_answer)
        self._last_answer = now
        self.seconds += _SMOOTHING * (busy_s / num_pictures - self.seconds)


class AdmissionLimits(msgspec.Struct, frozen=True):
    """How much is taken on."""

    num_requests: int
    """Requests at the same time, uploads included."""
    num_bytes: int
    """Bytes of uploads held at the same time; one request alone may always be held."""
    wait_s: float
    """Longest expected wait for the work that is ahead, seconds; seven pictures may always be ahead."""


class Ticket:
    """One request that was let in."""

    def __init__(self, num_bytes: int, now: float) -> None:
        self.num_bytes, self.arrived = num_bytes, now
        self.num_pictures: int | None = None
        """Known once the body was read."""
        self.began = now

    def work(self, now: float) -> int:
        """Pictures that it puts ahead of others."""
        if self.num_pictures is not None:
            return self.num_pictures
        return int(now - self.arrived < _UPLOAD_COUNTS_S)


class Admission:
    """Lets requests in.

    Args:
        limits: How much is taken on.
        metrics: Shows how many are in.
        pace: How fast answers leave.
    """

    def __init__(self, limits: AdmissionLimits, metrics: Metrics, pace: Pace | None = None) -> None:
        self._limits, self._metrics = limits, metrics
        self.pace = pace or Pace()
        self._inside: set[Ticket] = set()

    @property
    def num_pictures(self) -> int:
        """Pictures of all the requests whose bodies were read."""
        return sum(ticket.num_pictures or 0 for ticket in self._inside)

    @contextmanager
    def enter(self, num_bytes: int) -> Iterator[Ticket]:
        """Lets a request in until the context ends.

        Args:
            num_bytes: Size of its body, or the most it may be.

        Raises:
            Overloaded: It could not be answered in time.
        """
        now = time.monotonic()
        self._require_room(num_bytes, now)
        ticket = Ticket(num_bytes, now)
        self._inside.add(ticket)
        self._metrics.admitted.set(len(self._inside))
        try:
            yield ticket
        finally:
            self._inside.discard(ticket)
            self._metrics.admitted.set(len(self._inside))

    def begin(self, ticket: Ticket, num_pictures: int, num_bytes: int, deadline_s: float) -> None:
        """Takes on the work of a request, now that its body is known.

        Args:
            ticket: The request.
            num_pictures: Its pictures.
            num_bytes: What its pictures take, for a body of unknown length.
            deadline_s: Seconds from now in which it must be answered.

        Raises:
            Overloaded: The work ahead and its own take longer than its deadline.
        """
        now = time.monotonic()
        expected_s = (self._ahead(now, ticket) + num_pictures) * self.pace.seconds
        if expected_s > deadline_s and self._ahead(now, ticket):
            raise _refusal(expected_s - deadline_s)
        ticket.num_pictures, ticket.num_bytes, ticket.began = num_pictures, num_bytes, now

    def answered(self, ticket: Ticket) -> None:
        """Learns the pace from an answer that is there."""
        if ticket.num_pictures:
            self.pace.answered(ticket.num_pictures, ticket.began, time.monotonic())

    def _require_room(self, num_bytes: int, now: float) -> None:
        wait_s = self._ahead(now) * self.pace.seconds
        longest_s = max(self._limits.wait_s, _LEAST_AHEAD * self.pace.seconds)
        held = sum(ticket.num_bytes for ticket in self._inside)
        if wait_s > longest_s:
            raise _refusal(wait_s - longest_s)
        if len(self._inside) >= self._limits.num_requests or (held and held + num_bytes > self._limits.num_bytes):
            raise _refusal(wait_s)

    def _ahead(self, now: float, ticket: Ticket | None = None) -> int:
        return sum(other.work(now) for other in self._inside if other is not ticket)


def _refusal(in_s: float) -> Overloaded:
    retry_after_s = max(1, math.ceil(in_s))
    plural = "" if retry_after_s == 1 else "s"
    return Overloaded(
        "more requests arrive than can be answered in time",
        retry_after_s=retry_after_s,
        remedy=f"try again in {retry_after_s} second{plural}",
    )
