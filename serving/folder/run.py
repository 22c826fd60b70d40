"""One run: list, plan, identify what has no row yet, join the parts."""

import asyncio
import io
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from models.bundle import load_bundle
from serving.cores import available_cores
from serving.decoding.pool import DecodeLimits, DecoderPool
from serving.folder.command import IdentifyFolder
from serving.folder.identifying import PlantIdentifier
from serving.folder.output import Output, open_output
from serving.folder.photographs import Photograph, Store, open_store, read_list, with_content_hash
from serving.folder.plan import Part, Plan, extend_plan, read_plan
from serving.folder.plants import Plant, group_photographs
from serving.folder.progress import Progress
from serving.folder.record import (
    RunRecord,
    bundle_name,
    new_record,
    read_record,
    require_same,
    with_speed,
    write_record,
)
from serving.folder.rows import Row, columns
from serving.folder.sheet import SHEET_FILE, contact_sheet
from serving.folder.sorting import sort_photographs
from serving.folder.tables import decode, encode, open_writer
from serving.folder.truth import TRUTH_FILE, in_words, judge, require_truths
from serving.folder.truth_page import TRUTH_PAGE, truth_page
from serving.loaded_bundle import LoadedBundle, PictureDecoder, open_bundle
from serving.metrics import Metrics
from serving.parameters import Asked
from serving.settings import Settings, find_bundle

_PARTS: Final = "parts"
_FIRST_JUDGED: Final = 100  # rows before the share of failures counts
_DECODE_S: Final = 30.0  # of processor time for a photograph; nobody waits for its answer
_PHOTOGRAPHS_PER_RUN: Final = 4  # in memory: one in the network, the others in decoding or waiting


class Outcome(IntEnum):
    """Exit codes."""

    COMPLETE = 0
    SOME_FAILED = 3
    TOO_MANY_FAILED = 4
    INTERRUPTED = 75


class _TooManyFailed(Exception):
    """The share of failures is above its limit."""


def run(command: IdentifyFolder, decoder: PictureDecoder | None = None) -> Outcome:
    """Identifies the photographs that have no row yet, and joins all rows to one table.

    Args:
        command: The flags.
        decoder: Replaces the decoder processes; for tests.

    Raises:
        InputError: The bundle, the photographs or an option cannot be used, or the results are those of another run.
    """
    return _FolderRun(command, decoder).result()


class _FolderRun:
    def __init__(self, command: IdentifyFolder, decoder: PictureDecoder | None) -> None:
        self._command, self._given_decoder = command, decoder
        self._settings = Settings(
            bundle=command.bundle,
            precision=command.precision,
            provider=command.provider,
            taxa_lists=command.taxa_lists,
            num_threads=None if command.provider == "cuda" else 1,
            num_runs=command.num_runs,
        )
        self._output, self._store = open_output(command.out), open_store(command.photographs)
        self._record = new_record(bundle_name(find_bundle(self._settings)), command.answer_options())

    def result(self) -> Outcome:
        """Does what is left to do."""
        former = self._former_record()
        if former is not None and self._is_finished(former):
            return self._say(former)
        plan = self._plan()
        if former is None:
            write_record(self._output, self._record)
        todo = self._parts_without_rows(plan)
        kinds = _kinds(plan, self._command.k)
        outcome, progress = asyncio.run(self._identify(plan, todo, kinds))
        record = with_speed(self._record, progress.num_photographs, progress.seconds)
        if outcome is None and not self._missing(plan):
            record = self._join(plan, kinds, record)
            self._show(plan, kinds)
        write_record(self._output, record)
        return self._say(record) if outcome is None else outcome

    # ---- what is left to do

    def _former_record(self) -> RunRecord | None:
        if self._command.restart:
            _remove_results(self._output)
        former = read_record(self._output)
        if former is not None:
            require_same(former, self._record)
            self._record = msgspec.structs.replace(former, machine=self._record.machine)
        return former

    def _is_finished(self, former: RunRecord) -> bool:
        """Whether there is nothing new, as far as that is seen without looking at each file."""
        command = self._command
        wants_more = command.retry_failed or command.html or command.copy_to is not None
        if not former.is_complete or wants_more or command.by_hash or command.list is not None:
            return False
        return former.snapshot is not None and self._store.is_unchanged(former.snapshot)

    def _plan(self) -> Plan:
        plan = read_plan(self._output)
        photographs = _find(self._command, self._store)
        plants = group_photographs(photographs, self._command.group_by)
        if self._command.truth is not None:
            require_truths(plants, self._command.truth)
        new = plan.changed(plants)
        if self._command.retry_failed:
            new += self._failed_plants(plan)
        return extend_plan(self._output, plan, new, self._command.part_rows)

    def _failed_plants(self, plan: Plan) -> list[Plant]:
        plants = {plant.name: plant for part in plan.parts for plant in part.plants}
        rows = self._rows(plan, _kinds(plan, self._command.k))
        return [plants[row["group"]] for row in rows if row["status"] == "failed" or row["num_failed"]]

    def _parts_without_rows(self, plan: Plan) -> list[Part]:
        index, count = self._command.share()
        missing = self._missing(plan)
        return [part for part in plan.parts if part.number in missing and part.number % count == index]

    def _missing(self, plan: Plan) -> set[int]:
        there = set(self._output.names(_PARTS))
        return {part.number for part in plan.parts if self._file(part.number) not in there}

    def _file(self, number: int) -> str:
        return f"part-{number:06d}.{self._command.format}"

    # ---- identifying

    async def _identify(
        self, plan: Plan, todo: Sequence[Part], kinds: Mapping[str, type]
    ) -> tuple[Outcome | None, Progress]:
        """Writes the rows of parts; returns why it ended early, or None."""
        num_todo = sum(len(part.plants) for part in todo)
        with Progress(num_todo, len(plan.latest_part()) - num_todo) as progress:
            if not todo:
                return None, progress
            task = asyncio.ensure_future(self._write_parts(todo, kinds, progress))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                with suppress(NotImplementedError):  # on Windows, Ctrl-C raises KeyboardInterrupt
                    loop.add_signal_handler(number, task.cancel)
            try:
                await task
            except asyncio.CancelledError:
                _tell("interrupted; the same command continues")
                return Outcome.INTERRUPTED, progress
            except _TooManyFailed as error:
                _tell(f"botanify: {error}")
                return Outcome.TOO_MANY_FAILED, progress
        return None, progress

    async def _write_parts(self, todo: Sequence[Part], kinds: Mapping[str, type], progress: Progress) -> None:
        metrics = Metrics()
        loaded = await asyncio.to_thread(open_bundle, self._settings, metrics)
        decoder = self._given_decoder or DecoderPool(available_cores(), self._decode_limits(), metrics)
        try:
            await decoder.start()
            await loaded.warm_up(decoder)
            identifier = self._identifier(loaded, decoder)
            progress.begin()
            async for part, rows in identifier.identify(todo, progress.add):
                content = await asyncio.to_thread(encode, rows, kinds, self._command.format)
                await asyncio.to_thread(self._output.create, f"{_PARTS}/{self._file(part.number)}", content)
                self._check_failures(progress)
        finally:
            loaded.scheduler.close()
            await decoder.close()

    def _identifier(self, loaded: LoadedBundle, decoder: PictureDecoder) -> PlantIdentifier:
        command = self._command
        question, warnings = loaded.question(Asked(command.k, command.coverage, command.coverage_kind, command.taxa))
        for warning in warnings:
            _tell(f"warning: {warning}")
        runs = loaded.policy.num_workers * loaded.policy.batch_sizes[-1]
        return PlantIdentifier(
            loaded,
            decoder,
            self._store,
            question,
            max_photographs=_PHOTOGRAPHS_PER_RUN * runs,
            max_bytes=command.max_picture_bytes,
            min_score=command.min_score,
        )

    def _decode_limits(self) -> DecodeLimits:
        defaults = Settings()
        return DecodeLimits(
            picture_bytes=self._command.max_picture_bytes,
            budget_bytes=defaults.decode_budget_bytes,
            child_bytes=defaults.decode_child_bytes,
            seconds=_DECODE_S,
        )

    def _check_failures(self, progress: Progress) -> None:
        failed, done, limit = progress.counts["failed"], progress.num_done, self._command.max_failure_rate
        if done >= _FIRST_JUDGED and failed > limit * done:
            raise _TooManyFailed(
                f"{failed:,} of {done:,} rows failed, more than --max-failure-rate {limit:g}; "
                "look at the column `error`, then run the same command again with --retry-failed"
            )

    # ---- the table

    def _rows(self, plan: Plan, kinds: Mapping[str, type]) -> Iterator[Row]:
        """Yields the current row of each plant, part by part."""
        latest = plan.latest_part()
        for part in plan.parts:
            content = self._output.read(f"{_PARTS}/{self._file(part.number)}")
            if content is not None:
                rows = decode(content, kinds, self._command.format)
                yield from (row for row in rows if latest[row["group"]] == part.number)

    def _join(self, plan: Plan, kinds: Mapping[str, type], record: RunRecord) -> RunRecord:
        """Writes the table of all rows; returns the record with their counts."""
        counts: Counter[str] = Counter()
        with tempfile.TemporaryFile() as stream:
            writer = open_writer(stream, kinds, self._command.format)
            for chunk in _chunks(self._rows(plan, kinds), self._command.part_rows):
                writer.write(chunk)
                counts.update(row["status"] for row in chunk)
            writer.close()
            stream.seek(0)
            self._output.replace(f"results.{self._command.format}", stream)
        return msgspec.structs.replace(
            record, is_complete=True, counts=dict(counts), snapshot=self._store.snapshot() or record.snapshot
        )

    def _show(self, plan: Plan, kinds: Mapping[str, type]) -> None:
        """Writes what people look at: the contact sheet and the sorted copies."""
        command = self._command
        if command.truth is not None:
            self._judge(plan, kinds, command.truth)
        if command.html:
            page = contact_sheet(self._rows(plan, kinds), command.photographs, Path(command.out) / SHEET_FILE)
            self._output.replace(SHEET_FILE, io.BytesIO(page.encode()))
        if command.copy_to is not None:
            plants = {plant.name: plant for part in plan.parts for plant in part.plants}
            rows = self._rows(plan, kinds)
            sort_photographs(rows, plants, self._store, command.copy_to, command.by, links=command.links)

    def _judge(self, plan: Plan, kinds: Mapping[str, type], column: str) -> None:
        report = judge(self._rows(plan, kinds), column, load_bundle(find_bundle(self._settings)))
        self._output.replace(TRUTH_FILE, io.BytesIO(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"))
        self._output.replace(TRUTH_PAGE, io.BytesIO(truth_page(report).encode()))
        _tell(f"{in_words(report)}; see {self._command.out}/{TRUTH_PAGE}")

    def _say(self, record: RunRecord) -> Outcome:
        failed = record.counts.get("failed", 0)
        if not record.is_complete:
            _tell("other parts are missing; the last run that ends joins them")
            return Outcome.COMPLETE
        total = sum(record.counts.values())
        _tell(f"{total:,} rows, {failed:,} failed: {self._command.out}/results.{self._command.format}")
        return Outcome.SOME_FAILED if failed else Outcome.COMPLETE


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _find(command: IdentifyFolder, store: Store) -> list[Photograph]:
    found = store.find(recursive=command.recursive) if command.list is None else read_list(command.list, store)
    return [with_content_hash(each, store) for each in found] if command.by_hash else list(found)


def _kinds(plan: Plan, top_k: int) -> dict[str, type]:
    extra: dict[str, None] = {}
    for part in plan.parts:
        for plant in part.plants:
            extra |= dict.fromkeys(plant.photographs[0].columns)
    return columns(top_k, tuple(extra))


def _remove_results(output: Output) -> None:
    """Removes all that former runs wrote; the record goes last, so that a killed removal is noticed."""
    for folder in (_PARTS, "plans"):
        for name in output.names(folder):
            output.remove(f"{folder}/{name}")
    output.remove("run.json")


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
