"""One run: list, identify what has no row yet, join the parts."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, TextIO

import msgspec

from models.atomic_file import as_json
from models.bundle import load_bundle
from models.cores import cores
from models.errors import InputError, one_line, some_of, without_password
from models.program import duration_in_words
from models.ranking import NAMES_ARE_GUESSES
from serving.engine.decoding.pool import DecoderPool
from serving.folder import Outcome
from serving.folder.command import IdentifyFolder
from serving.folder.output import open_output
from serving.folder.photographs import find_photographs, open_store
from serving.folder.plants import group_photographs, read_list
from serving.folder.results import (
    CSV_TABLE,
    Part,
    PartFiles,
    bundle_name,
    keyed,
    new_record,
    read_record,
    with_speed,
    write_record,
    write_table,
)
from serving.folder.rows import Row, columns
from serving.folder.truth import TRUTH_FILE, in_words, judge, require_truths, trained_on
from serving.folder.worker import open_worker
from serving.settings import find_bundle

PART_ROWS: Final = 1000
"""Rows per part; a run that is killed loses the part in progress."""
_LINE_S: Final = 60.0
_BAR_S: Final = 0.5
_MOST_ENDINGS: Final = 10
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
        self._num_plants = num_plants
        self._num_before = num_before
        self._stream = stream
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
        left = f", {duration_in_words((self._num_plants - self.num_done) / rate)} left" if rate > 0 else ""
        failed = f", {self.counts['failed']:,} failed" if self.counts["failed"] else ""
        total = self._num_before + self._num_plants
        line = f"{self._num_before + self.num_done:,} of {total:,} plants{failed}, {rate:.1f} a second{left}"
        self._stream.write(f"\r\x1b[2K{line}{end}" if self._is_terminal else f"{line}\n")
        self._stream.flush()


class _TooManyFailed(Exception):
    """The share of failures is above its limit."""


def run(command: IdentifyFolder, decoder: DecoderPool | None = None) -> Outcome:
    """Identifies the photographs that have no row yet, and joins all rows to one table.

    Args:
        command: The flags.
        decoder: Replaces the decoder processes; for tests.

    Raises:
        InputError: The bundle, the photographs or an option cannot be used, or the results are those of another run.
    """
    folder_run = _FolderRun(command.with_absolute_paths())
    if not command.proves_names():
        _tell(NAMES_ARE_GUESSES)
    try:
        progress = asyncio.run(folder_run.identify(decoder))
    except _TooManyFailed as error:
        _tell(f"botanify: {error}")
        return Outcome.TOO_MANY_FAILED
    return folder_run.finish(progress)


class _FolderRun:
    """A run whose plants are listed: what it must refuse, it has refused."""

    def __init__(self, command: IdentifyFolder) -> None:
        new = new_record(bundle_name(find_bundle(command.bundle)), command.answer_options())
        self._command = command
        self._output = open_output(command.out)
        self._store = open_store(command.photographs, command.out)
        record = read_record(self._output, new)
        self._left_out = Counter[str]()
        if command.list is None:
            photographs = find_photographs(self._store, self._left_out)
        else:
            photographs = read_list(command.list, self._store)
        plants = group_photographs(photographs, command.group_by)
        if command.truth is not None:
            require_truths(plants, command.truth)
        if record is None:
            command.require_answerable()
            record = new
            write_record(self._output, record)
        self._record = msgspec.structs.replace(record, machine=new.machine)
        self._plants = keyed(plants, new)
        of_list = chain.from_iterable(plant.photographs[0].columns for plant in plants)
        self._files = PartFiles(self._output, columns(command.k, dict.fromkeys(of_list)))

    # ---- identifying

    async def identify(self, decoder: DecoderPool | None) -> Progress:
        """Writes the rows that are missing, or the share of this machine."""
        missing = self._missing(self._files.held(failed=not self._command.retry_failed).values())
        index, count = self._command.share()
        todo = [key for key in missing if int(key, 16) % count == index]
        parts = [
            {key: self._plants[key] for key in todo[first : first + PART_ROWS]}
            for first in range(0, len(todo), PART_ROWS)
        ]
        progress = Progress(len(todo), len(self._plants) - len(missing), sys.stderr)
        try:
            if parts:
                await self._write(parts, progress, decoder)
        finally:
            progress.end()
        return progress

    def _missing(self, held: Iterable[Iterable[str]]) -> list[str]:
        """Returns the keys of the plants that have no row."""
        done = set(chain.from_iterable(held))
        return [key for key in self._plants if key not in done]

    async def _write(self, parts: Sequence[Part], progress: Progress, decoder: DecoderPool | None) -> None:
        async with open_worker(self._command, self._record.bundle, self._files, cores(), decoder) as worker:
            progress.begin()
            await worker.write(parts, progress.add, partial(self._check_failures, progress))

    def _check_failures(self, progress: Progress) -> None:
        failed, done, limit = progress.counts["failed"], progress.num_done, self._command.max_failure_rate
        if done >= _FIRST_JUDGED and failed > limit * done:
            raise _TooManyFailed(
                f"{failed:,} of {done:,} rows failed, more than --max-failure-rate {limit:g}; "
                "look at the column `error`, then run the same command again with --retry-failed"
            )

    # ---- the table

    def finish(self, progress: Progress) -> Outcome:
        """Joins the table, if all plants have a row."""
        command = self._command
        held = self._files.held()
        if self._missing(held.values()):
            if command.part is None:
                raise InputError(
                    "parts of the results were removed during the run",
                    value=command.out,
                    remedy="run the same command again",
                )
            _tell("other parts are missing; the last run that ends joins them")
            return Outcome.COMPLETE

        def rows() -> Iterator[Row]:
            return self._files.rows(self._plants, held)

        counts = write_table(self._output, rows(), self._files.columns)
        record = msgspec.structs.replace(self._record, counts=counts)
        write_record(self._output, with_speed(record, progress.num_photographs, progress.seconds))
        self._output.remove_unfinished()
        failed = counts.get("failed", 0)
        _tell(f"{sum(counts.values()):,} rows, {failed:,} failed: {command.out}/{CSV_TABLE}")
        if self._left_out:
            endings = [f"{ending} {count:,}" for ending, count in self._left_out.most_common()]
            _tell(f"left out, as no photographs by their first bytes: {one_line(some_of(endings, _MOST_ENDINGS))}")
        if not command.proves_names():
            _tell(NAMES_ARE_GUESSES)
        if command.truth is not None:
            self._judge(command.truth, rows())
        # A scheduler would start a machine of several again.
        return Outcome.SOME_FAILED if failed and command.part is None else Outcome.COMPLETE

    def _judge(self, column: str, rows: Iterator[Row]) -> None:
        bundle = load_bundle(find_bundle(self._command.bundle))
        report = judge(rows, column, bundle)
        photographs = chain.from_iterable(plant.photographs for plant in self._plants.values())
        report = msgspec.structs.replace(report, trained_on=trained_on(bundle, photographs, self._store))
        self._output.write(TRUTH_FILE, as_json(report))
        _tell(in_words(report))


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{without_password(sentence)}\n")
