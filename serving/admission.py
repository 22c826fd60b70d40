"""Admission control: a request that cannot be answered in time is refused before its body is read.

The expected wait of a request is the number of pictures ahead of it, times the measured seconds per picture.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from serving.errors import Overloaded
from serving.metrics import Metrics

_SMOOTHING: Final = 0.1  # weight of the newest answer: the average follows a change within about twenty answers
# An upload counts as one picture for this long. A slow one then counts as none until it is complete, so that it does
# not keep other requests out.
_UPLOAD_COUNTS_S: Final = 1.0
_MIN_QUEUE: Final = 7  # pictures that may always be ahead, so that even a slow machine serves eight clients


class Pace:
    """Average seconds per picture while the service is busy: the inverse of the throughput.

    Args:
        seconds_per_picture: The estimate before the first answer.
    """

    def __init__(self, seconds_per_picture: float = 0.2) -> None:
        self.seconds_per_picture = seconds_per_picture
        self._last_answer_at = 0.0

    def record_answer(self, num_pictures: int, start: float, now: float) -> None:
        """Updates the average with one answer.

        Args:
            num_pictures: Pictures in the request.
            start: When its work could start, on the clock of `time.monotonic`.
            now: When it was answered.
        """
        busy_s = now - max(start, self._last_answer_at)
        self._last_answer_at = now
        self.seconds_per_picture += _SMOOTHING * (busy_s / num_pictures - self.seconds_per_picture)


class AdmissionLimits(msgspec.Struct, frozen=True):
    """How much work the service accepts."""

    num_requests: int
    """Most requests at the same time, uploads included."""
    num_bytes: int
    """Most bytes of uploads at the same time; a single request may exceed it."""
    wait_s: float
    """Longest expected wait, seconds; a wait behind seven pictures or fewer is always accepted."""


class AdmittedRequest:
    """An identify request between its admission and its response."""

    def __init__(self, num_bytes: int, now: float) -> None:
        self.num_bytes, self.arrived_at = num_bytes, now
        self.num_pictures: int | None = None
        """None until the body has been read."""
        self.work_start = now

    def num_pictures_expected(self, now: float) -> int:
        """Returns how many pictures the request adds to the work; an upload in its first second counts as one."""
        if self.num_pictures is not None:
            return self.num_pictures
        return int(now - self.arrived_at < _UPLOAD_COUNTS_S)


class Admission:
    """Admits or refuses requests.

    Args:
        limits: How much work to accept.
        metrics: Receives the number of admitted requests.
        pace: The measured seconds per picture.
    """

    def __init__(self, limits: AdmissionLimits, metrics: Metrics, pace: Pace | None = None) -> None:
        self._limits, self._metrics = limits, metrics
        self.pace = pace or Pace()
        self._admitted: set[AdmittedRequest] = set()

    @property
    def num_pictures(self) -> int:
        """Pictures of all admitted requests whose bodies have been read."""
        return sum(request.num_pictures or 0 for request in self._admitted)

    @contextmanager
    def enter(self, num_bytes: int) -> Iterator[AdmittedRequest]:
        """Admits a request until the context ends.

        Args:
            num_bytes: Size of its body, or the most that it can be.

        Raises:
            Overloaded: The request could not be answered in time.
        """
        now = time.monotonic()
        self._require_room(num_bytes, now)
        request = AdmittedRequest(num_bytes, now)
        self._admitted.add(request)
        self._metrics.admitted.set(len(self._admitted))
        try:
            yield request
        finally:
            self._admitted.discard(request)
            self._metrics.admitted.set(len(self._admitted))

    def start_work(self, request: AdmittedRequest, num_pictures: int, num_bytes: int, deadline_s: float) -> None:
        """Accepts the work of a request whose body has been read.

        Args:
            request: The request.
            num_pictures: How many pictures it has.
            num_bytes: Total size of its pictures.
            deadline_s: Seconds from now until its deadline.

        Raises:
            Overloaded: The pictures ahead and its own would take longer than the deadline.
        """
        now = time.monotonic()
        num_ahead = self._num_pictures_ahead(now, request)
        expected_s = (num_ahead + num_pictures) * self.pace.seconds_per_picture
        if expected_s > deadline_s and num_ahead:
            raise _overloaded(expected_s - deadline_s)
        request.num_pictures, request.num_bytes, request.work_start = num_pictures, num_bytes, now

    def record_answer(self, request: AdmittedRequest) -> None:
        """Updates the pace with an answered request."""
        if request.num_pictures:
            self.pace.record_answer(request.num_pictures, request.work_start, time.monotonic())

    def _require_room(self, num_bytes: int, now: float) -> None:
        wait_s = self._num_pictures_ahead(now) * self.pace.seconds_per_picture
        longest_s = max(self._limits.wait_s, _MIN_QUEUE * self.pace.seconds_per_picture)
        held_bytes = sum(request.num_bytes for request in self._admitted)
        if wait_s > longest_s:
            raise _overloaded(wait_s - longest_s)
        if len(self._admitted) >= self._limits.num_requests or (
            held_bytes and held_bytes + num_bytes > self._limits.num_bytes
        ):
            raise _overloaded(wait_s)

    def _num_pictures_ahead(self, now: float, request: AdmittedRequest | None = None) -> int:
        return sum(other.num_pictures_expected(now) for other in self._admitted if other is not request)


def _overloaded(wait_s: float) -> Overloaded:
    return Overloaded.with_retry("more requests arrive than can be answered in time", wait_s)
