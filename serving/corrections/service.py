"""Takes corrections from requests to the store: remembers recent answers, and writes in a thread of its own.

Answers never wait for the store: they are remembered in memory, and a full disk, a locked database or one that does not
respond costs corrections alone. Neither can it hold the service when that stops.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import structlog

from models.errors import InputError, one_line
from serving.corrections.record import Correction
from serving.engine.threads import Worker
from serving.errors import BadParameter, StoreUnavailable, UnknownAnswer
from serving.metrics import Metrics

if TYPE_CHECKING:
    from serving.corrections.store import Store

_MAX_ANSWERS: Final = 10_000  # about 10 MB
_MAX_WAITING: Final = 32  # each holds its place among the requests
_DEADLINE_S: Final = 6.0  # a little longer than the store waits for a lock
_CLOSE_S: Final = 1.0  # what `serving.api.server` leaves for closing
_PURGE_EVERY_S: Final = 3_600.0
_MEASURE_EVERY_S: Final = 60.0
_RETRY_S: Final = 5

_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


class RecentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that can be corrected."""

    identity: str
    """Of the client that got it."""
    sha256s: frozenset[str]
    """Of the pictures."""
    draft: Correction
    """What is stored, but for what the person says."""


class CorrectionService:
    """Remembers answers and stores corrections.

    Args:
        store: Where corrections go.
        days: How long they are kept.
    """

    def __init__(self, store: "Store", days: int) -> None:
        self.days = days
        self._store = store
        self._answers: OrderedDict[tuple[str, str], RecentAnswer] = OrderedDict()
        self._writer = Worker("corrections")
        self._purger = Worker("purge")
        self._measurer = Worker("measure")
        self._call: asyncio.Future[Any] | None = None
        self._num_waiting = 0
        self._is_away = False

    def remember(self, request_id: str, answer: RecentAnswer) -> None:
        """Remembers an answer, and forgets the oldest one if there are too many."""
        key = answer.identity, request_id  # clients may choose the same id
        self._answers[key] = answer
        self._answers.move_to_end(key)  # a client may choose one again
        if len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)

    def find(self, request_id: str, identity: str) -> RecentAnswer:
        """Returns an answer.

        Raises:
            UnknownAnswer: It is forgotten, or another client got it.
        """
        answer = self._answers.get((identity, request_id))
        if answer is None:
            raise UnknownAnswer(
                "the service does not know this answer, or gave it to another client",
                value=repr(request_id[:40]),
                limit=f"one of the last {_MAX_ANSWERS:,} answers since its start",
                remedy="identify the pictures again",
            )
        return answer

    def require_free(self) -> None:
        """Checks that a correction would not wait behind many others, or behind one while the store does not work.

        Raises:
            StoreUnavailable: It would.
        """
        if self._call is not None and (self._is_away or self._num_waiting >= _MAX_WAITING):
            raise StoreUnavailable.with_retry("other corrections are waiting for the store", _RETRY_S)

    async def correct(
        self, answer: RecentAnswer, taxon_id: str | None, name: str, *, certain: bool, pictures: Sequence[bytes]
    ) -> None:
        """Stores what a person says about an answer, in place of what they said before.

        Args:
            answer: The answer.
            taxon_id: What the plant is, if the model knows it.
            name: Its scientific name, or what the person wrote.
            certain: Whether the person is certain.
            pictures: Pictures of the answer that the person gives.

        Raises:
            BadParameter: A picture is none of those that were identified.
            StoreFull: There is no room for the pictures.
            StoreUnavailable: The store cannot be written now.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        said = msgspec.structs.replace(answer.draft, created=now, taxon_id=taxon_id, name=name, certain=certain)

        def put() -> None:
            if any(hashlib.sha256(picture).hexdigest() not in answer.sha256s for picture in pictures):
                raise BadParameter(
                    "a picture is none of those that were identified", remedy="send the same bytes again"
                )
            self._store.put(said, pictures)

        await self._in_thread(put)

    async def delete(self, correction_id: str) -> None:
        """Deletes a correction and its pictures; errors as `find` and `correct`."""
        is_one = re.fullmatch(r"[0-9a-f]{32}", correction_id) is not None
        if not is_one or not await self._in_thread(lambda: self._store.delete([correction_id])):
            raise UnknownAnswer(
                "there is no such correction", value=repr(correction_id[:40]), remedy="it may have been deleted already"
            )

    async def purge_forever(self) -> None:
        """Deletes what is too old, at once and then every hour."""
        while True:
            try:
                number = await self._purger.submit(lambda: self._store.purge(self.days))
            except Exception as error:  # expired pictures must go after any failure
                reason = one_line(error) if isinstance(error, InputError) else type(error).__name__
                _log.error("corrections_not_purged", error=reason)
                number = 0
            if number:
                _log.info("corrections_expired", number=number)
            await asyncio.sleep(_PURGE_EVERY_S)

    async def measure_forever(self, metrics: Metrics) -> None:
        """Tells the metrics how much is kept, at once and then every minute."""
        while True:
            try:
                kept = await self._measurer.submit(self._store.kept)
            except Exception as error:  # the next minute may do better
                _log.error("corrections_not_measured", error=type(error).__name__)
            else:
                now = datetime.now(UTC)
                metrics.corrections.set(kept.num_corrections)
                metrics.corrections_bytes.set(kept.num_bytes)
                made = datetime.fromisoformat(kept.oldest) if kept.oldest else now
                metrics.corrections_age_s.set((now - made).total_seconds())
            await asyncio.sleep(_MEASURE_EVERY_S)

    def close(self) -> None:
        """Finishes what was begun and closes the store, unless that takes too long."""
        end_at = time.monotonic() + _CLOSE_S
        workers = self._writer, self._purger, self._measurer
        for worker in workers:
            worker.stop()
            worker.join(max(0.0, end_at - time.monotonic()))
        if not any(worker.is_alive for worker in workers):
            self._store.close()

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Runs a call within the deadline, one at a time; after a failure none waits for another one."""
        call = None
        try:
            async with asyncio.timeout(_DEADLINE_S):
                while self._call is not None:
                    self.require_free()
                    self._num_waiting += 1
                    try:
                        await asyncio.wait({self._call})
                    finally:
                        self._num_waiting -= 1
                call = self._call = self._writer.submit(work)
                call.add_done_callback(self._end)
                await asyncio.wait({call})  # a client that leaves does not end it
                result: _Result = call.result()
                return result
        except TimeoutError:
            self._is_away = True
            _log.error("store_unavailable", error=f"no response within {_DEADLINE_S:g} s")
            raise StoreUnavailable.with_retry("the store of corrections does not respond", _RETRY_S) from None
        except StoreUnavailable as error:
            if error.__cause__ is not None:
                _log.error("store_unavailable", error=one_line(error.__cause__))
            raise
        finally:
            del call  # it holds its exception, whose traceback holds this frame and the pictures

    def _end(self, call: "asyncio.Future[Any]") -> None:
        self._call = None
        self._is_away = isinstance(call.exception(), StoreUnavailable)
