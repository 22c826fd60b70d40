"""One run: list, plan, identify what has no row yet, join the parts."""

import asyncio
import io
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from models.bundle import load_bundle
from serving.cores import available_cores
from serving.folder.cluster import write_on_cluster
from serving.folder.command import IdentifyFolder
from serving.folder.devices import write_on_devices
from serving.folder.lists import read_list
from serving.folder.output import Output, open_output
from serving.folder.parts import PartFiles, columns_of, remove_parts
from serving.folder.photographs import Photograph, Store, open_store, with_content_hash
from serving.folder.plan import Part, Plan, extend_plan, read_plan, remove_plans
from serving.folder.plants import Plant, group_photographs
from serving.folder.progress import Progress
from serving.folder.record import (
    RECORD_FILE,
    RunRecord,
    new_record,
    read_record,
    require_same,
    start_record,
    with_speed,
    write_record,
)
from serving.folder.rows import Row
from serving.folder.sheet import SHEET_FILE, contact_sheet
from serving.folder.sorting import require_outside, sort_photographs
from serving.folder.tables import open_writer
from serving.folder.truth import TRUTH_FILE, in_words, judge, require_truths
from serving.folder.truth_page import TRUTH_PAGE, truth_page
from serving.folder.worker import bundle_of, open_worker
from serving.loaded_bundle import PictureDecoder
from serving.settings import Settings, find_bundle

_FIRST_JUDGED: Final = 100  # rows before the share of failures counts


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
    if command.copy_to is not None and command.list is None:
        require_outside(command.copy_to, command.photographs)
    return _FolderRun(command, decoder).result()


class _FolderRun:
    def __init__(self, command: IdentifyFolder, decoder: PictureDecoder | None) -> None:
        self._command, self._given_decoder = command, decoder
        self._output, self._store = open_output(command.out), open_store(command.photographs, command.out)
        self._record = new_record(bundle_of(command), command.answer_options())
        self._listed: str | None = None

    def result(self) -> Outcome:
        """Does what is left to do."""
        former = self._former_record()
        if former is not None and self._is_finished(former):
            return self._say()
        plan = self._plan(is_new=former is None)
        if self._command.plan_only:
            _tell(f"{len(plan.parts):,} parts are planned")
            return Outcome.COMPLETE
        files = self._files(plan)
        outcome, progress = asyncio.run(self._identify(plan, files))
        if outcome is not None:
            return outcome
        if files.missing(plan):
            _tell("other parts are missing; the last run that ends joins them")
            return Outcome.COMPLETE
        self._record = with_speed(self._join(plan, files), progress.num_photographs, progress.seconds)
        write_record(self._output, self._record)
        self._show(plan, files)
        return self._say()

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
        wants_more = command.retry_failed or command.html or command.copy_to is not None or command.truth is not None
        if not former.is_complete or wants_more or command.by_hash or former.listed != _listed(command):
            return False
        return former.snapshot is not None and self._store.is_unchanged(former.snapshot)

    def _plan(self, *, is_new: bool) -> Plan:
        """Returns the plan with what is new. A machine that has a share takes it as it is: only one of them lists."""
        command = self._command
        plan = Plan(()) if is_new else read_plan(self._output, self._record.run_id)
        if command.part is not None and plan.parts:
            return plan
        self._listed = _listed(command)  # before the list is read
        plants = group_photographs(_find(command, self._store), command.group_by)
        if command.truth is not None:
            require_truths(plants, command.truth)
        if is_new:  # not earlier: where the listing fails there is no run yet
            self._record = start_record(self._output, self._record)
            plan = read_plan(self._output, self._record.run_id)  # another machine may have started it
        new = plan.changed(plants)
        if command.retry_failed:
            new += self._failed_plants(plan)
        return extend_plan(self._output, self._record.run_id, plan, new, command.part_rows)

    def _failed_plants(self, plan: Plan) -> list[Plant]:
        plants = {plant.name: plant for part in plan.parts for plant in part.plants}
        rows = self._files(plan).rows(plan)
        return [plants[row["group"]] for row in rows if row["status"] == "failed" or row["num_failed"]]

    def _files(self, plan: Plan) -> PartFiles:
        return PartFiles(self._output, self._record.run_id, columns_of(plan, self._command.k), self._command.format)

    # ---- identifying

    async def _identify(self, plan: Plan, files: PartFiles) -> tuple[Outcome | None, Progress]:
        """Writes the rows of the parts that lack them; returns why it ended early, or None."""
        index, count = self._command.share()
        missing = files.missing(plan)
        todo = [part for part in plan.parts if part.number in missing and part.number % count == index]
        num_todo = sum(len(part.plants) for part in todo)
        with Progress(num_todo, len(plan.latest_part()) - num_todo) as progress:
            if not todo:
                return None, progress
            task = asyncio.ensure_future(self._write_parts(todo, files, progress))
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

    async def _write_parts(self, todo: Sequence[Part], files: PartFiles, progress: Progress) -> None:
        command, bundle = self._command, self._record.bundle
        if command.ray is not None or command.devices != 1:
            write = write_on_devices if command.ray is None else write_on_cluster
            async for rows in write(command, bundle, files, todo):
                for row in rows:
                    progress.add(row)
                self._check_failures(progress)
            return
        async with open_worker(command, bundle, files, available_cores(), self._given_decoder) as worker:
            progress.begin()
            async for _ in worker.write(todo, progress.add):
                self._check_failures(progress)

    def _check_failures(self, progress: Progress) -> None:
        failed, done, limit = progress.counts["failed"], progress.num_done, self._command.max_failure_rate
        if done >= _FIRST_JUDGED and failed > limit * done:
            raise _TooManyFailed(
                f"{failed:,} of {done:,} rows failed, more than --max-failure-rate {limit:g}; "
                "look at the column `error`, then run the same command again with --retry-failed"
            )

    # ---- the table

    def _join(self, plan: Plan, files: PartFiles) -> RunRecord:
        """Writes the table of all rows; returns the record with their counts."""
        counts: Counter[str] = Counter()
        with tempfile.TemporaryFile() as stream:
            writer = open_writer(stream, files.kinds, files.format)
            for chunk in _chunks(files.rows(plan), self._command.part_rows):
                writer.write(chunk)
                counts.update(row["status"] for row in chunk)
            writer.close()
            stream.seek(0)
            self._output.replace(f"results.{files.format}", stream)
        record = msgspec.structs.replace(self._record, is_complete=True, counts=dict(counts))
        if self._listed is None:  # another machine did
            return record
        return msgspec.structs.replace(record, listed=self._listed, snapshot=self._store.snapshot())

    def _show(self, plan: Plan, files: PartFiles) -> None:
        """Writes what people look at: the contact sheet and the sorted copies."""
        command = self._command
        if command.truth is not None:
            self._judge(plan, files, command.truth)
        if command.html:
            page = contact_sheet(files.rows(plan), command.photographs, Path(command.out) / SHEET_FILE)
            self._output.replace(SHEET_FILE, io.BytesIO(page.encode()))
        if command.copy_to is not None:
            plants = {plant.name: plant for part in plan.parts for plant in part.plants}
            sort_photographs(files.rows(plan), plants, self._store, command.copy_to, command.by, links=command.links)

    def _judge(self, plan: Plan, files: PartFiles, column: str) -> None:
        bundle = load_bundle(find_bundle(Settings(bundle=self._command.bundle)))
        report = judge(files.rows(plan), column, bundle)
        self._output.replace(TRUTH_FILE, io.BytesIO(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"))
        self._output.replace(TRUTH_PAGE, io.BytesIO(truth_page(report).encode()))
        _tell(f"{in_words(report)}; see {self._command.out}/{TRUTH_PAGE}")

    def _say(self) -> Outcome:
        counts = self._record.counts
        failed = counts.get("failed", 0)
        _tell(f"{sum(counts.values()):,} rows, {failed:,} failed: {self._command.out}/results.{self._command.format}")
        # A scheduler would start a machine of several again.
        return Outcome.SOME_FAILED if failed and self._command.part is None else Outcome.COMPLETE


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _listed(command: IdentifyFolder) -> str:
    """Describes what is listed, so that other flags or another list are noticed."""
    if command.list is None:
        return f"{command.photographs}, {'recursive' if command.recursive else 'not recursive'}"
    return f"{command.photographs}, {command.list} of {command.list.stat().st_mtime_ns if command.list.exists() else 0}"


def _find(command: IdentifyFolder, store: Store) -> list[Photograph]:
    found = store.find(recursive=command.recursive) if command.list is None else read_list(command.list, store)
    return [with_content_hash(each, store) for each in found] if command.by_hash else list(found)


def _remove_results(output: Output) -> None:
    """Removes all that former runs wrote; the record goes last, so that a killed removal is noticed."""
    remove_parts(output)
    remove_plans(output)
    output.remove(RECORD_FILE)


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
