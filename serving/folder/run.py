"""One run: list, plan, identify what has no row yet, join the parts."""

import asyncio
import io
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TextIO

import msgspec

from models.bundle import load_bundle
from models.cores import cores
from models.errors import InputError, without_password
from serving.folder import Outcome
from serving.folder.cluster import write_on_cluster
from serving.folder.command import IdentifyFolder
from serving.folder.copies import copy_photographs, require_outside
from serving.folder.darwin_core import DARWIN_CORE_FILE, write_darwin_core
from serving.folder.output import as_json, open_output
from serving.folder.photographs import open_store
from serving.folder.plan import Part, Plan, count_plans, extend_plan, read_plan
from serving.folder.plants import group_photographs, read_list
from serving.folder.results import (
    CSV_TABLE,
    PartFiles,
    RunRecord,
    bundle_name,
    columns_of,
    new_record,
    read_record,
    require_same,
    start_record,
    with_speed,
    write_record,
    write_table,
)
from serving.folder.rows import Row
from serving.folder.truth import TRUTH_FILE, in_words, judge, require_truths, trained_on
from serving.folder.worker import open_worker
from serving.loaded_bundle import PictureDecoder

PART_ROWS: Final = 1000
"""Rows per part; a run that is killed loses the part in progress."""
_LINE_S: Final = 60.0
_BAR_S: Final = 0.5
_FIRST_JUDGED: Final = 100  # rows before the share of failures counts


class Progress:
    """Counts rows and says how far the run is: a bar on a terminal, a line a minute elsewhere.

    Args:
        num_plants: Plants of this run.
        num_before: Plants that former runs answered.
        stream: Where to write.
    """

    def __init__(self, num_plants: int, num_before: int, stream: TextIO) -> None:
        self.counts: Counter[str] = Counter()
        self.num_photographs = 0
        self._num_plants, self._num_before, self._stream = num_plants, num_before, stream
        self._is_terminal = self._stream.isatty()
        self.begin()

    @property
    def num_done(self) -> int:
        """Plants of this run with a row."""
        return self.counts.total()

    @property
    def seconds(self) -> float:
        """Time from `begin` to the last row, s."""
        return self._last_at - self._started_at

    def begin(self) -> None:
        """Starts the clock: the network is open, and the first plant follows."""
        self._started_at = self._said_at = self._last_at = time.monotonic()

    def add(self, row: Row) -> None:
        """Counts a row."""
        self.counts[row["status"]] += 1
        self.num_photographs += row["num_photographs"]
        self._last_at = time.monotonic()
        if self._last_at - self._said_at >= (_BAR_S if self._is_terminal else _LINE_S):
            self._said_at = self._last_at
            self._say("")

    def end(self) -> None:
        """Completes the bar."""
        if self._is_terminal and self.counts:
            self._say("\n")

    def _say(self, end: str) -> None:
        rate = self.num_done / self.seconds if self.seconds > 0 else 0.0
        left = f", {_duration((self._num_plants - self.num_done) / rate)} left" if rate > 0 else ""
        failed = f", {self.counts['failed']:,} failed" if self.counts["failed"] else ""
        total = self._num_before + self._num_plants
        line = f"{self._num_before + self.num_done:,} of {total:,} plants{failed}, {rate:.1f} a second{left}"
        self._stream.write(f"\r\x1b[2K{line}{end}" if self._is_terminal else f"{line}\n")
        self._stream.flush()


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{hours:.1f} h"


class _TooManyFailed(Exception):
    """The share of failures is above its limit."""


class _State(NamedTuple):
    """What is known of a run at a moment; other machines may add to it."""

    record: RunRecord
    plan: Plan


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
    return _FolderRun(command.with_absolute_paths(), decoder).result()


class _FolderRun:
    def __init__(self, command: IdentifyFolder, decoder: PictureDecoder | None) -> None:
        self._command, self._given_decoder = command, decoder
        self._new = new_record(bundle_name(command.bundle_folder()), command.answer_options())
        self._output, self._store = open_output(command.out), open_store(command.photographs, command.out)

    def result(self) -> Outcome:
        """Does what is left to do."""
        planned = self._plan()
        wants_more = self._command.darwin_core or self._command.copy_to or self._command.truth
        if planned.record.is_complete and not wants_more:
            return self._say(planned.record)
        try:
            progress = asyncio.run(self._identify(planned))
        except _TooManyFailed as error:
            _tell(f"botanify: {error}")
            return Outcome.TOO_MANY_FAILED
        return self._finish(self._latest(planned), progress)

    # ---- what is left to do

    def _plan(self) -> _State:
        """Plans what is new. A machine that has a share takes the plan as it is: only one of them lists."""
        command, output = self._command, self._output
        record = read_record(output)
        plan = Plan()
        if record is not None:
            require_same(record, self._new)
            plan = read_plan(output, record.run_id)
        if record is None or command.part is None or not plan.parts:
            photographs = self._store.find() if command.list is None else read_list(command.list, self._store)
            plants = group_photographs(photographs, command.group_by)
            if command.truth is not None:
                require_truths(plants, command.truth)
            if record is None:
                command.require_answerable()  # all that can be refused has been refused before a run starts
                record = start_record(output, self._new)
            failed = self._failed(_State(record, plan)) if command.retry_failed else {}
            plan = extend_plan(output, record.run_id, plan, plants, part_rows=PART_ROWS, failed=failed)
        if record.num_plans != plan.num_files:
            record = msgspec.structs.replace(record, is_complete=False)
            write_record(output, record)  # after the plan: who reads the record first finds no older plan
        return _State(record, plan)

    def _failed(self, planned: _State) -> Mapping[str, int]:
        """Returns the plants with a photograph that failed, and the part of each."""
        rows = self._files(planned).rows(planned.plan)
        names = (row["group"] for row in rows if row["status"] == "failed" or row["num_failed"])
        return {name: planned.plan.current[name] for name in names}

    def _files(self, planned: _State) -> PartFiles:
        return PartFiles(self._output, planned.record.run_id, columns_of(planned.plan, self._command.k))

    # ---- identifying

    async def _identify(self, planned: _State) -> Progress:
        """Writes the rows of the parts that lack them."""
        index, count = self._command.share()
        files = self._files(planned)
        todo = [part for part in planned.plan.missing(files.written()) if part.number % count == index]
        left = {part.number for part in todo}
        num_before = sum(number not in left for number in planned.plan.current.values())
        progress = Progress(sum(len(part.plants) for part in todo), num_before, sys.stderr)
        try:
            if todo:
                await self._write_parts(planned.record, todo, files, progress)
        finally:
            progress.end()
        return progress

    async def _write_parts(self, record: RunRecord, todo: Sequence[Part], files: PartFiles, progress: Progress) -> None:
        command, bundle = self._command, record.bundle
        if command.ray is not None:
            async for rows in write_on_cluster(command, bundle, files, todo):
                for row in rows:
                    progress.add(row)
                self._check_failures(progress)
            return
        async with open_worker(command, bundle, files, cores(), self._given_decoder) as worker:
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

    def _latest(self, planned: _State) -> _State:
        """Reads again what others may have changed meanwhile; the record first, see `_plan`."""
        record = read_record(self._output)
        if record is None or record.run_id != planned.record.run_id:
            raise InputError(
                "another run was started in this place meanwhile, so that this one has no results",
                value=self._command.out,
                remedy="run the same command again, or choose another --out",
            )
        if count_plans(self._output, record.run_id) == planned.plan.num_files:
            return _State(record, planned.plan)
        return _State(record, read_plan(self._output, record.run_id))

    def _finish(self, latest: _State, progress: Progress) -> Outcome:
        """Joins the table, if all parts are there."""
        record, plan = latest
        files = self._files(latest)
        if plan.missing(files.written()):
            _tell("other parts are missing; the last run that ends joins them")
            return Outcome.COMPLETE
        counts = write_table(self._output, files.rows(plan), files.columns)
        record = msgspec.structs.replace(
            record, machine=self._new.machine, is_complete=True, counts=counts, num_plans=plan.num_files
        )
        record = with_speed(record, progress.num_photographs, progress.seconds)
        write_record(self._output, record)
        self._output.remove_unfinished()
        outcome = self._say(record)
        if self._command.truth is not None:
            self._judge(self._command.truth, plan, files)
        if self._command.darwin_core:
            number = write_darwin_core(self._output, files.rows(plan), record.run_id)
            _tell(f"{number:,} occurrences: {self._command.out}/{DARWIN_CORE_FILE}")
        if self._command.copy_to is not None:
            copy_photographs(files.rows(plan), plan.plants(), self._store, self._command.copy_to)
        return outcome

    def _judge(self, column: str, plan: Plan, files: PartFiles) -> None:
        bundle = load_bundle(self._command.bundle_folder())
        plants = (plant for name, plant in plan.plants().items() if name in plan.current)
        photographs = (photograph for plant in plants for photograph in plant.photographs)
        report = judge(files.rows(plan), column, bundle)
        report = msgspec.structs.replace(report, trained_on=trained_on(bundle, photographs, self._store))
        self._output.replace(TRUTH_FILE, io.BytesIO(as_json(report)))
        _tell(in_words(report))

    def _say(self, record: RunRecord) -> Outcome:
        failed = record.counts.get("failed", 0)
        _tell(f"{sum(record.counts.values()):,} rows, {failed:,} failed: {self._command.out}/{CSV_TABLE}")
        # A scheduler would start a machine of several again.
        return Outcome.SOME_FAILED if failed and self._command.part is None else Outcome.COMPLETE


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{without_password(sentence)}\n")
