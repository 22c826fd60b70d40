"""Plants -> rows: reads, decodes and runs the photographs of many plants at once, and keeps few of them in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from models.answer import Question
from models.errors import BotanifyError, DataError
from models.session import NetworkOutput
from serving.errors import TooLarge
from serving.folder.capture import read_capture
from serving.folder.photographs import Photograph, Store
from serving.folder.plan import Part
from serving.folder.plants import Plant
from serving.folder.rows import Failure, Row, Seen, answered, failed, of_bundle
from serving.loaded_bundle import LoadedBundle, PictureDecoder


class _Started(NamedTuple):
    """A part in progress."""

    part: Part
    rows: "asyncio.Future[list[asyncio.Task[Row]]]"
    """Known once the last plant of the part has been started."""


class PlantIdentifier:
    """Identifies plants with the service's own decoder, network and ranking.

    Args:
        loaded: The bundle, warmed up.
        decoder: Turns the bytes of a photograph into network input; started.
        store: Where the photographs are.
        question: What to answer about each plant.
        max_photographs: Number of photographs in memory at the same time.
        max_bytes: Size of the largest photograph that is read.
        min_score: Verdicts with a lower score become uncertain.
    """

    def __init__(
        self,
        loaded: LoadedBundle,
        decoder: PictureDecoder,
        store: Store,
        question: Question,
        *,
        max_photographs: int,
        max_bytes: int,
        min_score: float | None = None,
    ) -> None:
        self._loaded, self._decoder, self._store, self._question = loaded, decoder, store, question
        self._max_bytes, self._min_score = max_bytes, min_score
        self._slots = asyncio.Semaphore(max_photographs)
        self._rows: set[asyncio.Task[Row]] = set()
        self._bundle_columns = of_bundle(loaded.bundle)

    async def identify(
        self, parts: Iterable[Part], on_row: Callable[[Row], None]
    ) -> AsyncIterator[tuple[Part, list[Row]]]:
        """Yields each part with its rows, in the order of the parts, as soon as the part is complete.

        Args:
            parts: What to identify.
            on_row: Called with each row as soon as it is there.
        """
        started: asyncio.Queue[_Started | None] = asyncio.Queue()
        feeder = asyncio.create_task(self._feed(parts, started, on_row))
        try:
            while (next_part := await _next(started, feeder)) is not None:
                yield next_part.part, await asyncio.gather(*await next_part.rows)
        finally:
            feeder.cancel()
            for row in self._rows:
                row.cancel()
            await asyncio.gather(feeder, *self._rows, return_exceptions=True)

    async def _feed(
        self, parts: Iterable[Part], started: "asyncio.Queue[_Started | None]", on_row: Callable[[Row], None]
    ) -> None:
        """Starts one plant after the other, whatever part it is in, so that the processor is busy between parts."""
        for part in parts:
            rows: list[asyncio.Task[Row]] = []
            all_rows: asyncio.Future[list[asyncio.Task[Row]]] = asyncio.get_running_loop().create_future()
            started.put_nowait(_Started(part, all_rows))
            for plant in part.plants:
                await self._slots.acquire()
                rows.append(self._start(plant, on_row))
            all_rows.set_result(rows)
        started.put_nowait(None)

    def _start(self, plant: Plant, on_row: Callable[[Row], None]) -> "asyncio.Task[Row]":
        def done(row: asyncio.Task[Row]) -> None:
            self._rows.discard(row)
            self._slots.release()
            if not row.cancelled() and row.exception() is None:
                on_row(row.result())

        row = asyncio.create_task(self._row(plant))
        self._rows.add(row)
        row.add_done_callback(done)
        return row

    async def _row(self, plant: Plant) -> Row:
        outputs: list[NetworkOutput] = []
        seen: list[Seen] = []
        failures: list[Failure] = []
        for photograph in plant.photographs:
            try:
                output, facts = await self._run(photograph)
            except (BotanifyError, OSError) as error:
                failures.append(Failure.of(error))
            else:
                outputs.append(output)
                seen.append(facts)
        return self._bundle_columns | self._answer(plant, outputs, seen, failures)

    def _answer(
        self, plant: Plant, outputs: Sequence[NetworkOutput], seen: Sequence[Seen], failures: list[Failure]
    ) -> Row:
        if not outputs:
            return failed(plant, failures)
        together = NetworkOutput(*(np.concatenate(arrays) for arrays in zip(*outputs, strict=True)))
        try:
            answer = self._loaded.answer(together, self._question)
        except BotanifyError as error:
            return failed(plant, [*failures, Failure.of(error)])
        return answered(plant, answer, seen, failures, self._min_score)

    async def _run(self, photograph: Photograph) -> tuple[NetworkOutput, Seen]:
        data = await asyncio.to_thread(self._read, photograph)
        decoded = await self._decoder.decode(data, self._loaded.spec)
        facts = Seen(decoded.width, decoded.height, read_capture(data))
        return await self._loaded.scheduler.run([decoded.pixels]), facts

    def _read(self, photograph: Photograph) -> bytes:
        if photograph.num_bytes < 0:
            raise DataError("the file does not exist", value=photograph.path, remedy="correct the list")
        data = self._store.read(photograph.path, self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise TooLarge(
                "the file is too large", value=f"{photograph.num_bytes} bytes", limit=f"{self._max_bytes} bytes"
            )
        return data


async def _next(started: "asyncio.Queue[_Started | None]", feeder: "asyncio.Task[None]") -> _Started | None:
    """Waits for the next part; an error of the feeder is raised here."""
    waiting = asyncio.ensure_future(started.get())
    await asyncio.wait({waiting, feeder}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done() and feeder.done():
        waiting.cancel()
        feeder.result()
    return await waiting
