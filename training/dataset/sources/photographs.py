"""Photographs that a list gives addresses of: fetched politely, and written as a list for `prepare.py table`.

Those that are in the folder already are not asked for again, so the same command continues after a cut or a kill, and
tries again what failed.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import msgspec
from rich.progress import track

from models.errors import DataError
from models.text_table import write_csv
from training.dataset.transfer import Fetcher, NoAnswer, RemoteFile, why_no_picture

FAILED_FILE: Final = "failed.csv"
SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".heic", ".avif")
_FOLDER: Final = "photographs"
_STEM: Final = re.compile(r"[0-9A-Za-z-]{1,100}")
_MAX_BYTES: Final = 50_000_000
_MAX_S: Final = 600.0
_ATTEMPTS: Final = 3
_MOST_SILENT: Final = 8  # requests in a row without an answer: two minutes, with the pauses
_LONGEST_PAUSE_S: Final = 600.0  # also of all pauses in a row, so that no server holds an import for hours
_THREADS: Final = 16
_LOOK_S: Final = 0.5  # how often a pause is looked at


class Photograph(msgspec.Struct, frozen=True, gc=False):
    """A photograph of the list."""

    path: str
    """Relative to the list's folder, or absolute."""
    url: str
    """Empty if it is there already."""
    cells: Mapping[str, str]
    """Column of `training.dataset.sources.table` -> what is known of it."""


class Imported(msgspec.Struct, frozen=True):
    """What a list of photographs gave."""

    table: Path
    """A list for `prepare.py table`."""
    num_pictures: int
    left_out: Counter[str]
    """Reason -> number of photographs."""


def picture_path(stem: str, url: str) -> str | None:
    """Returns where a photograph goes, relative to the list; None if `stem` or the address cannot be used."""
    try:
        address = urlsplit(url)
        if address.scheme not in {"http", "https"} or not address.hostname or not _STEM.fullmatch(stem):
            return None
    except ValueError:
        return None
    suffix = PurePosixPath(address.path).suffix.lower()
    return f"{_FOLDER}/{stem}{suffix if suffix in SUFFIXES else '.jpg'}"


def import_photographs(
    photographs: Iterable[Photograph], table: Path, left_out: Counter[str], *, at_once: int, pause_s: float
) -> Imported:
    """Fetches photographs, and writes the list of those that are there; FAILED_FILE beside it lists the others.

    Args:
        photographs: Those to list; of several with one path the first.
        table: The list to write.
        left_out: Reason -> number of photographs that are not among them.
        at_once: Requests at a time to one server.
        pause_s: Least time between the starts of two requests to one server.

    Raises:
        DataError: No photograph is left. What was fetched stays.
        OSError: The disk cannot be written.
    """
    listed: dict[str, Photograph] = {}
    for each in photographs:
        listed.setdefault(each.path, each)
    urls = {path: each.url for path, each in listed.items() if each.url}
    table.parent.mkdir(parents=True, exist_ok=True)
    fetcher = Fetcher(attempts=1, pause_s=pause_s, max_bytes=_MAX_BYTES, max_s=_MAX_S)
    failed = _fetch_all(urls, table.parent, fetcher, at_once)
    found = {path: each.cells for path, each in listed.items() if path not in failed}
    left_out = left_out + Counter(f"not fetched: {error.value or error.limit}" for error in failed.values())
    reasons = [(path, urls[path], error) for path, error in failed.items()]
    if reasons:
        write_csv(table.with_name(FAILED_FILE), ("path", "url", "reason"), reasons)
    else:
        table.with_name(FAILED_FILE).unlink(missing_ok=True)
    if not found:
        told = "; ".join(f"{reason}: {count:,}" for reason, count in left_out.most_common(3))
        raise DataError("no photograph is left", value=told or "an empty list", remedy="see what was left out")
    columns = next(iter(found.values())).keys()
    write_csv(table, ("path", *columns), ((path, *map(cells.get, columns)) for path, cells in found.items()))
    return Imported(table, len(found), left_out)


class _Server:
    """A server, and the photographs that it is still to be asked for."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[str, RemoteFile, int]] = deque()
        """Path in the list, file, and how often it got no answer."""
        self.num_running = 0
        self.has_answered = False
        self.num_silent = 0
        """Failures in a row; of those that ran at the same time one counts."""
        self.not_before = 0.0
        self.paused_s = 0.0

    def answered(self) -> None:
        self.has_answered = True
        self.num_silent = 0
        self.paused_s = 0.0

    def was_silent(self, asked_at: float, wait_s: float) -> None:
        if asked_at >= self.not_before:
            self.num_silent += 1
            pause_s = min(max(wait_s, 2.0 ** (self.num_silent - 1)), _LONGEST_PAUSE_S)
            self.paused_s += pause_s
            self.not_before = monotonic() + pause_s

    @property
    def is_left(self) -> bool:
        return self.num_silent >= _MOST_SILENT or self.paused_s > _LONGEST_PAUSE_S


def _fetch_all(urls: Mapping[str, str], out: Path, fetcher: Fetcher, at_once: int) -> dict[str, DataError]:
    """Fetches what is missing or no picture; returns why photographs failed."""
    servers: dict[str, _Server] = {}
    for path, url in urls.items():
        file = RemoteFile(url, out / path, is_picture=True)
        if not file.path.exists() or why_no_picture(file.path):
            servers.setdefault(urlsplit(url).netloc, _Server()).waiting.append((path, file, 0))
    num_missing = sum(len(server.waiting) for server in servers.values())
    results = track(_results([*servers.values()], fetcher, at_once), "Photographs", num_missing)
    return {path: error for path, error in results if error is not None}


def _results(servers: list[_Server], fetcher: Fetcher, at_once: int) -> Iterator[tuple[str, DataError | None]]:
    """Yields the path of each photograph, and why it failed.

    A server that gave no answer is asked after all others, with longer pauses, and in the end no more. No thread waits
    for it meanwhile.
    """
    running: dict[Future[DataError | None], tuple[_Server, str, RemoteFile, int, float]] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            while servers:
                while len(running) < _THREADS and (server := _next(servers, at_once)):
                    path, file, num_tries = server.waiting.popleft()
                    server.num_running += 1
                    running[pool.submit(_failure, fetcher, file)] = server, path, file, num_tries + 1, monotonic()
                if not running:
                    fetcher.stopped.wait(max(0.0, min(each.not_before for each in servers) - monotonic()))
                for future in wait(running, _LOOK_S, FIRST_COMPLETED).done:
                    server, path, file, num_tries, asked_at = running.pop(future)
                    server.num_running -= 1
                    error = future.result()
                    if not isinstance(error, NoAnswer):
                        server.answered()
                        yield path, error
                        continue
                    server.was_silent(asked_at, error.wait_s)
                    if num_tries < _ATTEMPTS:
                        server.waiting.append((path, file, num_tries))
                    else:
                        yield path, error
                    if server.is_left:
                        yield from ((path, error) for path, *_ in server.waiting)
                        server.waiting.clear()
                servers = [each for each in servers if each.waiting or each.num_running]
        except BaseException:
            fetcher.stopped.set()  # else the pool would first finish what it has
            raise


def _next(servers: Iterable[_Server], at_once: int) -> _Server | None:
    """Returns the server that comes next: first those that answered, then those that were not asked yet."""
    now = monotonic()
    ready = (each for each in servers if each.waiting and each.num_running < at_once and each.not_before <= now)
    return min(ready, key=lambda each: (each.num_silent, not each.has_answered), default=None)


def _failure(fetcher: Fetcher, file: RemoteFile) -> DataError | None:
    """Fetches a photograph; returns why it failed. What cannot be written is an OSError."""
    try:
        fetcher.fetch(file)
    except DataError as error:
        return error
    return None
