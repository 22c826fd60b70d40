"""Photographs that a list gives addresses of: fetched politely, and written as a list for `prepare.py table`.

Those that are in the folder already are not asked for again, so the same command continues after a cut or a kill, and
tries again what failed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import msgspec
from rich.progress import track

from models.errors import DataError
from models.text_table import write_csv
from training.dataset.transfer import Fetcher, NoAnswer, RemoteFile
from training.processes import in_order

FAILED_FILE: Final = "failed.csv"
SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".heic", ".avif")
_FOLDER: Final = "photographs"
_MAX_BYTES: Final = 50_000_000
_ATTEMPTS: Final = 3
_MOST_SILENT: Final = 20  # pictures in a row that a server gives no answer for: some minutes, with the pauses
_LONGEST_PAUSE_S: Final = 60.0
_AHEAD: Final = 16  # pictures for each thread; one that waits for its server does not stop the others


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
    """Returns where a photograph goes, relative to the list; None if its address is none of the web."""
    try:
        address = urlsplit(url)
        if address.scheme not in {"http", "https"} or not address.hostname:
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
        at_once: Requests at a time.
        pause_s: Least time between the starts of two requests to one server.

    Raises:
        DataError: No photograph is left, or the disk cannot be written. What was fetched stays.
    """
    listed: dict[str, Photograph] = {}
    for each in photographs:
        listed.setdefault(each.path, each)
    urls = {path: each.url for path, each in listed.items() if each.url}
    failed = _fetch_all(urls, table.parent, Fetcher(attempts=_ATTEMPTS, pause_s=pause_s), at_once)
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


def _fetch_all(urls: Mapping[str, str], out: Path, fetcher: Fetcher, at_once: int) -> dict[str, DataError]:
    """Fetches what is missing, and at the end once more what got no answer; returns why photographs failed."""
    failed: dict[str, DataError] = {}
    missing = [path for path in urls if not (out / path).exists()]
    for title in ("Photographs", "Photographs without an answer"):
        if not missing:
            break
        servers = _Servers(fetcher)
        with ThreadPoolExecutor(at_once) as pool:
            try:
                files = (RemoteFile(urls[path], out / path) for path in missing)
                errors = track(in_order(pool, servers.fetch, files, most=_AHEAD * at_once), title, len(missing))
                answers = dict(zip(missing, errors, strict=True))
            except BaseException:
                fetcher.stopped.set()  # else the pool would first finish what it has
                raise
        failed = {path: error for path, error in (failed | answers).items() if error is not None}
        missing = [path for path, error in failed.items() if isinstance(error, NoAnswer)]
    return failed


class _Servers:
    """Fetches from many servers. One that gives no answer gets longer pauses, and in the end no more requests."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._silent: Counter[str] = Counter()
        """Server -> photographs in a row that it gave no answer for."""

    def fetch(self, file: RemoteFile) -> tuple[DataError | None]:
        """Returns why a file could not be fetched.

        Raises:
            DataError: It could not be written.
        """
        server = urlsplit(file.url).netloc
        if self._silent[server] >= _MOST_SILENT:
            return (NoAnswer(f"{server} gives no answer", value=f"no answer {_MOST_SILENT} times in a row"),)
        try:
            self._fetcher.fetch(file, max_bytes=_MAX_BYTES)
        except NoAnswer as error:
            self._silent[server] += 1
            self._fetcher.stopped.wait(min(2.0 ** self._silent[server], _LONGEST_PAUSE_S))
            return (error,)
        except DataError as error:
            if isinstance(error.__cause__, OSError):
                raise
            self._silent[server] = 0
            return (error,)
        self._silent[server] = 0
        return (None,)
