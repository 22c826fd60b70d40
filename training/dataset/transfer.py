"""Fetches files from other people's servers: politely, and in a way that a cut, a kill or a power failure cannot spoil.

Until it is complete a file is called NAME.part. Another attempt continues there if the server has the same version.
"""

import hashlib
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import Final, TypeVar

import httpx
import msgspec

from models.atomic_file import sync, write_bytes
from models.errors import DataError, without_password
from models.retry_after import retry_after_s

_AGENT: Final = "botanify (fetches training data)"
_TIMEOUT_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 60.0
_LONGEST_RETRY_AFTER_S: Final = 600.0
_SYNC_BYTES: Final = 1 << 24
_READ_BYTES: Final = 1 << 20
_TRY_LATER: Final = frozenset({408, 425, 429})  # and all from 500; other statuses stay what they are

Watcher = Callable[[int, int], None]
"""Gets the position in a file, and how many bytes it moved: 0 after a start at that position."""
Result = TypeVar("Result")


class RemoteFile(msgspec.Struct, frozen=True):
    """A file on a server, and its place here."""

    url: str
    path: Path
    md5: str = ""
    """The published checksum; empty if there is none."""
    num_bytes: int | None = None
    """The length that the server tells."""


class NoAnswer(DataError):
    """A server gave no answer, or only such as may be another one later."""


class _TryAgainError(Exception):
    """An answer that may be another one later."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Fetcher:
    """Asks servers. Threads may share it: a pause that a host asks for holds for all of them.

    Proxies come from the usual variables, such as HTTPS_PROXY.
    """

    def __init__(self, *, attempts: int = 10, pause_s: float = 0.0, tell: Callable[[str], None] = print) -> None:
        """Makes one.

        Args:
            attempts: Failures in a row, without a byte between them, that end a request.
            pause_s: Least time between the starts of two requests to one host.
            tell: Gets a sentence before a pause, and about a file that changed.
        """
        self.stopped = Event()
        """Once set, running transfers end with an error."""
        self._client = httpx.Client(
            headers={"User-Agent": _AGENT, "Accept-Encoding": "identity"}, follow_redirects=True, timeout=_TIMEOUT_S
        )
        self._attempts = attempts
        self._pause_s = pause_s
        self._tell = tell
        self._lock = Lock()
        self._next_at: dict[str, float] = {}

    def num_bytes(self, url: str) -> int | None:
        """Returns the length of a file, or None if its server does not tell.

        Raises:
            DataError: There is no such file, or no answer.
        """

        def ask() -> int | None:
            with self._answer("HEAD", url, {}) as response:
                text = response.headers.get("Content-Length", "") if response.status_code == 200 else ""
                return int(text) if text.isdecimal() else None

        return self._persist(url, ask, lambda: 0)

    def fetch(self, file: RemoteFile, *, watch: Watcher = lambda *_: None, max_bytes: int | None = None) -> None:
        """Fetches a file; what an earlier run has of it stays.

        Raises:
            DataError: The file cannot be fetched, is longer than `max_bytes`, or has another checksum or length: then
                it is called NAME.wrong.
            OSError: It cannot be written; what there is of it stays.
        """
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            part = _Part(file.path)
            self._persist(file.url, lambda: self._receive(file, part, watch, max_bytes), lambda: part.position)
            part.forget_version()
            self.require_content(part.path, file, watch)
            part.path.replace(file.path)
            sync(file.path.parent)
        except OSError as error:  # for example if the disk is full
            raise OSError(error.errno, error.strerror, str(file.path)) from error

    def require_content(self, path: Path, file: RemoteFile, watch: Watcher = lambda *_: None) -> None:
        """Compares length and checksum of a copy with the published ones; a wrong copy is renamed to NAME.wrong.

        Raises:
            DataError: They differ.
        """
        found: object = path.stat().st_size
        wanted: object = file.num_bytes
        if file.md5 and wanted in {None, found}:
            wanted = f"MD5 {file.md5}"
            found = f"MD5 {self._md5(path, watch)}"
        if wanted not in {None, found}:
            aside = file.path.with_name(f"{file.path.name}.wrong")
            path.replace(aside)
            raise DataError(
                f"{file.url} is not the published file",
                value=found,
                limit=str(wanted),
                remedy=f"run the same command again to fetch it anew; this copy is {aside}",
            )

    def _md5(self, path: Path, watch: Watcher) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        watch(0, 0)
        with path.open("rb") as stream:
            while chunk := stream.read(_READ_BYTES):
                self.go_on()
                digest.update(chunk)
                watch(stream.tell(), len(chunk))
        return digest.hexdigest()

    def go_on(self) -> None:
        """Ends a transfer once `stopped` is set.

        Raises:
            DataError: It is.
        """
        if self.stopped.is_set():
            raise DataError("the transfer was stopped", remedy="run the same command again: it continues")

    def _receive(self, file: RemoteFile, part: "_Part", watch: Watcher, max_bytes: int | None) -> None:
        """Appends to a part what the server gives from its end on."""
        if not (part.version or file.md5):
            part.position = 0  # nothing would tell that two versions were joined
        headers = {"Range": f"bytes={part.position}-"} if part.position else {}
        if part.position and part.version:
            headers["If-Range"] = part.version
        with self._answer("GET", file.url, headers) as response:
            span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            changed = bool(part.version) and _version(response) not in {"", part.version}
            if response.status_code == 416 and total == str(part.position):
                return
            if response.status_code == 200:
                if part.position:
                    why = "has changed" if changed else "comes from a server without Range"
                    self._tell(without_password(f"{file.url} {why}: starting again"))
                part.restart(_version(response))
            elif response.status_code != 206 or changed or not span.startswith(f"{part.position}-"):
                part.restart("")
                reason = "it has changed" if changed else f"status {response.status_code} to a range"
                raise _TryAgainError(f"{reason}, starting again")
            watch(part.position, 0)
            with part.writer() as write:
                for chunk in response.iter_raw():
                    self.go_on()
                    write(chunk)
                    watch(part.position, len(chunk))
                    if max_bytes is not None and part.position > max_bytes:
                        part.restart("")
                        part.path.unlink()
                        raise DataError(f"{file.url} is too long", limit=f"at most {max_bytes / 1e6:g} MB")

    def _persist(self, url: str, action: Callable[[], Result], position: Callable[[], int]) -> Result:
        """Repeats an action until it succeeds, with pauses that grow while the position does not."""
        failures = 0
        furthest = position()
        while True:
            try:
                return action()
            except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects) as error:
                raise DataError(f"{url} cannot be fetched", value=error, remedy="correct the address") from error
            except (httpx.TransportError, _TryAgainError) as error:
                reason = str(error) or type(error).__name__
                wait_s = error.wait_s if isinstance(error, _TryAgainError) else 0.0
            failures = 1 if position() > furthest else failures + 1
            furthest = max(furthest, position())
            if failures >= self._attempts:
                raise NoAnswer(
                    f"{url} cannot be fetched",
                    value=f"{reason} after {failures} attempts",
                    remedy="check connection and proxy variables, and run the same command again: it continues",
                )
            wait_s = max(wait_s, min(2.0 ** (failures - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0))
            self._tell(without_password(f"{url}: {reason}; again in {wait_s:.0f} s"))
            with self._lock:
                self._next_at[_host(url)] = max(self._next_at[_host(url)], monotonic() + wait_s)

    @contextmanager
    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Waits for its turn, and opens an answer: of status 2xx, 405 to HEAD or 416 to GET."""
        with self._lock:
            now = monotonic()
            start = max(now, self._next_at.get(_host(url), now))
            self._next_at[_host(url)] = start + self._pause_s
        if start > now:
            self._wait(start - now)
        self.go_on()
        with self._client.stream(method, url, headers=dict(headers)) as response:
            status = response.status_code
            if status in _TRY_LATER or status >= 500:
                asked_s = retry_after_s(response.headers.get("Retry-After", ""))
                raise _TryAgainError(f"status {status}", min(asked_s, _LONGEST_RETRY_AFTER_S))
            if status >= 300 and status != {"HEAD": 405, "GET": 416}[method]:
                raise DataError(f"{url} cannot be fetched", value=f"status {status}", remedy="check the address")
            yield response

    def _wait(self, seconds: float) -> None:
        self.stopped.wait(seconds)


class _Part:
    """What is here of a file: NAME.part, and beside it the server's word for the version that it belongs to.

    The word stands on the disk from the first sync on. A shorter part is fetched again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.part")
        self._version_file = path.with_name(f"{path.name}.part.version")
        self.version = self._version_file.read_text() if self._version_file.exists() else ""
        size = self.path.stat().st_size if self.path.exists() else 0
        # A power failure may have taken what was written after the last sync.
        self.position = max(0, size - _SYNC_BYTES)

    def restart(self, version: str) -> None:
        self.position = 0
        self.version = version
        self.forget_version()

    def forget_version(self) -> None:
        self._version_file.unlink(missing_ok=True)

    @contextmanager
    def writer(self) -> Iterator[Callable[[bytes], None]]:
        synced = self.position
        with self.path.open("r+b" if self.path.exists() else "wb") as stream:
            stream.truncate(self.position)
            stream.seek(self.position)

            def write(chunk: bytes) -> None:
                nonlocal synced
                stream.write(chunk)
                self.position += len(chunk)
                if self.position - synced >= _SYNC_BYTES:
                    finish()
                    synced = self.position
                    if self.version and not self._version_file.exists():
                        write_bytes(self._version_file, self.version.encode())

            def finish() -> None:
                stream.flush()
                os.fsync(stream.fileno())

            yield write
            finish()


def _version(response: httpx.Response) -> str:
    """What names the version of a file in If-Range, which takes no weak ETag."""
    tag: str = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else str(response.headers.get("Last-Modified", ""))


def _host(url: str) -> str:
    return httpx.URL(url).host
