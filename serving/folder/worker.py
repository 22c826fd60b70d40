"""Parts of the plan -> files of rows: what each process of a run does, on one machine or on many."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from models.errors import InputError
from serving.decoding.pool import DecodeLimits, DecoderPool
from serving.folder.command import IdentifyFolder
from serving.folder.identifying import PlantIdentifier
from serving.folder.parts import PartFiles
from serving.folder.photographs import open_store
from serving.folder.plan import Part
from serving.folder.record import BundleName, bundle_name
from serving.folder.rows import Row
from serving.loaded_bundle import LoadedBundle, PictureDecoder, open_bundle
from serving.metrics import Metrics
from serving.schemas import Asked
from serving.settings import Settings, find_bundle

_DECODE_S: Final = 30.0  # of processor time for a photograph; nobody waits for its answer
_PHOTOGRAPHS_PER_RUN: Final = 4  # in memory: one in the network, the others in decoding or waiting


class Worker:
    """Identifies the plants of parts, and writes their rows.

    Args:
        identifier: Has the bundle and the decoder.
        files: Where the rows go.
    """

    def __init__(self, identifier: PlantIdentifier, files: PartFiles) -> None:
        self._identifier, self._files = identifier, files

    async def write(self, parts: Iterable[Part], on_row: Callable[[Row], None]) -> AsyncIterator[Part]:
        """Yields each part once its rows are written.

        Args:
            parts: What to identify.
            on_row: Called with each row as soon as it is there.
        """
        async for part, rows in self._identifier.identify(parts, on_row):
            await asyncio.to_thread(self._files.write, part.number, rows)
            yield part


@asynccontextmanager
async def open_worker(
    command: IdentifyFolder, bundle: BundleName, files: PartFiles, num_cores: int, decoder: PictureDecoder | None = None
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
    decoder = decoder or DecoderPool(num_cores, _decode_limits(command), metrics)
    try:
        await decoder.start()
        await loaded.warm_up(decoder)
        yield Worker(_identifier(command, loaded, decoder), files)
    finally:
        loaded.scheduler.close()
        await decoder.close()


def bundle_of(command: IdentifyFolder) -> BundleName:
    """Returns the name of the bundle that answers on this machine.

    Raises:
        InputError: It is missing or damaged.
    """
    return bundle_name(find_bundle(Settings(bundle=command.bundle)))


def _open(command: IdentifyFolder, expected: BundleName, metrics: Metrics, num_cores: int) -> LoadedBundle:
    found = bundle_of(command)
    if found != expected:
        raise InputError(
            "the bundle of this machine is another one",
            value=f"{found.name} {found.version}",
            limit=f"{expected.name} {expected.version}, with which the run started",
            remedy="copy that one to all machines",
        )
    cuda = command.provider == "cuda"
    settings = Settings(
        bundle=command.bundle,
        precision=command.precision,
        provider=command.provider,
        taxa_lists=command.taxa_lists,
        num_threads=None if cuda else 1,
        num_runs=command.num_runs or (None if cuda else num_cores),
    )
    return open_bundle(settings, metrics)


def _identifier(command: IdentifyFolder, loaded: LoadedBundle, decoder: PictureDecoder) -> PlantIdentifier:
    question, warnings = loaded.question(Asked(command.k, command.coverage, command.coverage_kind, command.taxa))
    for warning in warnings:
        sys.stderr.write(f"warning: {warning}\n")
    runs = loaded.policy.num_workers * loaded.policy.batch_sizes[-1]
    return PlantIdentifier(
        loaded,
        decoder,
        open_store(command.photographs),
        question,
        max_photographs=_PHOTOGRAPHS_PER_RUN * runs,
        max_bytes=command.max_picture_bytes,
        min_score=command.min_score,
    )


def _decode_limits(command: IdentifyFolder) -> DecodeLimits:
    defaults = Settings()
    return DecodeLimits(
        picture_bytes=command.max_picture_bytes,
        budget_bytes=defaults.decode_budget_bytes,
        seconds=_DECODE_S,
    )
