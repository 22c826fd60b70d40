"""Parts -> files of rows: what each process of a run does, on one machine or on one of many.

It reads, decodes and runs the photographs of many plants at once, and keeps few of them in memory.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
import numpy as np

from models.errors import BotanifyError, DataError, InputError
from models.exif import MAX_XMP_BYTES, read_sidecar
from models.place import first_place
from models.session import NetworkOutput
from serving.engine.decoding.pool import DecodeLimits, DecoderPool
from serving.engine.loaded_bundle import LoadedBundle, open_bundle
from serving.errors import TooLarge, Unavailable
from serving.folder.command import IdentifyFolder
from serving.folder.photographs import Photograph, open_store
from serving.folder.plants import Plant
from serving.folder.results import BundleName, Part, PartFiles, bundle_name
from serving.folder.rows import Failure, Row, Seen, answered, failed
from serving.metrics import Metrics
from serving.schemas import PLACE_REASONS, Parameters
from serving.settings import DECODE_BUDGET_BYTES, ModelOptions, find_bundle

MAX_PICTURE_BYTES: Final = 100_000_000
_DECODE_S: Final = 30.0  # of processor time for a photograph; nobody waits for its answer
_PHOTOGRAPHS_PER_RUN: Final = 4  # in memory: one in the network, the others in decoding or waiting
_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)  # before a photograph is tried again that the machine failed on


class Worker:
    """Identifies the plants of parts with the service's own decoder, network and ranking, and writes their rows.

    The decoder is started, and the bundle warmed up.
    """

    def __init__(self, command: IdentifyFolder, files: PartFiles, loaded: LoadedBundle, decoder: DecoderPool) -> None:
        self._files, self._loaded, self._decoder = files, loaded, decoder
        self._store = open_store(command.photographs)
        self._min_score = command.min_score
        self._uses_exif = command.place == "exif"
        self._question, warnings = loaded.question(
            Parameters(k=command.k, coverage=command.coverage, taxa=command.taxa)
        )
        if self._uses_exif and loaded.answer_model.place is None:
            warnings = (*warnings, PLACE_REASONS["no_prior"])
        for warning in warnings:
            sys.stderr.write(f"warning: {warning}\n")
        runs = loaded.policy.num_workers * loaded.policy.batch_sizes[-1]
        self._slots = asyncio.Semaphore(_PHOTOGRAPHS_PER_RUN * runs)
        record = loaded.bundle.record
        self._bundle_columns: Row = {
            "bundle_name": record.name, "bundle_version": record.version, "label_hash": record.label_hash,
        }  # fmt: skip

    async def write(
        self, parts: Iterable[Part], on_row: Callable[[Row], None], on_part: Callable[[], None] = lambda: None
    ) -> None:
        """Writes the rows of each part once they are there, in any order: a slow plant holds up its own part.

        One plant is started after the other, whatever part it is in, so that the processor is busy between parts.

        Args:
            parts: What to identify.
            on_row: Called with each row as soon as it is there.
            on_part: Called after each part.

        Raises:
            Unavailable: The network or the decoder does not work, also after some pauses.
        """

        async def write_part(part: Part, rows: Sequence[asyncio.Task[Row]]) -> None:
            await asyncio.to_thread(self._files.write, part, await asyncio.gather(*rows))
            on_part()

        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    rows: list[asyncio.Task[Row]] = []
                    for plant in part.values():
                        await self._slots.acquire()
                        rows.append(tasks.create_task(self._row(plant, on_row)))
                        rows[-1].add_done_callback(lambda _: self._slots.release())
                    tasks.create_task(write_part(part, rows))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _row(self, plant: Plant, on_row: Callable[[Row], None]) -> Row:
        outputs: list[NetworkOutput] = []
        seen: list[Seen] = []
        failures: list[Failure] = []
        for photograph in plant.photographs:
            try:
                output, facts = await self._run_patiently(photograph)
            except Unavailable:  # not the photograph's fault: no row, so that the same command answers it later
                raise
            except (BotanifyError, OSError) as error:
                failures.append(Failure.of(error))
            else:
                outputs.append(output)
                seen.append(facts)
        row = self._bundle_columns | self._answer(plant, outputs, seen, failures)
        on_row(row)
        return row

    def _answer(
        self, plant: Plant, outputs: Sequence[NetworkOutput], seen: Sequence[Seen], failures: list[Failure]
    ) -> Row:
        if not outputs:
            return failed(plant, failures)
        together = NetworkOutput(*(np.concatenate(arrays) for arrays in zip(*outputs, strict=True)))
        question = self._question
        if self._uses_exif:
            question = msgspec.structs.replace(question, where=first_place(each.capture for each in seen))
        try:
            answer = self._loaded.answer(together, question)
        except BotanifyError as error:
            return failed(plant, [*failures, Failure.of(error)])
        return answered(plant, answer, seen, failures, self._min_score)

    async def _run_patiently(self, photograph: Photograph) -> tuple[NetworkOutput, Seen]:
        for pause_s in _PAUSES_S:
            with suppress(Unavailable):
                return await self._run(photograph)
            await asyncio.sleep(pause_s)
        return await self._run(photograph)

    async def _run(self, photograph: Photograph) -> tuple[NetworkOutput, Seen]:
        data = await asyncio.to_thread(self._read, photograph)
        decoded = await self._decoder.decode(data, self._loaded.spec)
        capture = decoded.capture
        if photograph.sidecar:
            with suppress(BotanifyError, OSError):  # it may be gone
                sidecar = await asyncio.to_thread(self._store.read, photograph.sidecar, MAX_XMP_BYTES + 1)
                capture = capture.completed(read_sidecar(sidecar))
        facts = Seen(photograph, decoded.width, decoded.height, capture, decoded.is_cut_off)
        return await self._loaded.scheduler.run([decoded.pixels]), facts

    def _read(self, photograph: Photograph) -> bytes:
        if photograph.num_bytes < 0:
            problem = photograph.version or "the file does not exist"
            raise DataError(problem, value=photograph.path, remedy="correct the file or the list")
        data = self._store.read(photograph.path, MAX_PICTURE_BYTES + 1)
        if len(data) > MAX_PICTURE_BYTES:
            raise TooLarge(
                "the file is too large", value=f"{photograph.num_bytes} bytes", limit=f"{MAX_PICTURE_BYTES} bytes"
            )
        return data


@asynccontextmanager
async def open_worker(
    command: IdentifyFolder, bundle: BundleName, files: PartFiles, num_cores: int, decoder: DecoderPool | None = None
) -> AsyncIterator[Worker]:
    """Opens the bundle and starts the decoder; ends both with the context.

    Args:
        command: The flags.
        bundle: The bundle that the run started with.
        files: Where the rows go.
        num_cores: Cores that it may use.
        decoder: Replaces the decoder processes; for tests.

    Raises:
        InputError: The bundle is damaged or another one, or a flag does not fit it.
    """
    metrics = Metrics()
    loaded = await asyncio.to_thread(_open, command, bundle, metrics, num_cores)
    limits = DecodeLimits(MAX_PICTURE_BYTES, DECODE_BUDGET_BYTES, _DECODE_S)
    decoder = decoder or DecoderPool(num_cores, limits, metrics)
    try:
        await decoder.start()
        await loaded.warm_up(decoder)
        yield Worker(command, files, loaded, decoder)
    finally:
        loaded.scheduler.close()
        await decoder.close()


def _open(command: IdentifyFolder, expected: BundleName, metrics: Metrics, num_cores: int) -> LoadedBundle:
    found = bundle_name(find_bundle(command.bundle))
    if found != expected:
        raise InputError(
            "the bundle of this machine is another one",
            value=found,
            limit=f"{expected}, with which the run started",
            remedy="copy that one to all machines",
        )
    cuda = command.provider == "cuda"
    options = ModelOptions(
        bundle=command.bundle,
        precision=command.precision,
        provider=command.provider,
        taxa_lists=command.taxa_lists,
        num_threads=None if cuda else 1,
        num_runs=None if cuda else num_cores,
    )
    return open_bundle(options, metrics)
