"""Fetches files from other people's servers: politely, and in a way that a cut, a kill or a power failure cannot spoil.

Until it is complete a file is called NAME.part. Another attempt, or another run, continues there if a checksum is
known, since nothing else tells that two versions were joined. Complete means the length that was announced, or a
checksum, or a picture that decodes.
"""

import hashlib
import math
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import Final, TypeVar

import httpx2
import msgspec

from models.atomic_file import sync
from models.errors import DataError, PictureError, without_password
from models.file_structure import sniff_format
from models.preprocess import read_picture
from models.retry_after import retry_after_s

_AGENT: Final = "botanify (fetches training data)"
_LONGEST_PAUSE_S: Final = 60.0
_LONGEST_RETRY_AFTER_S: Final = 600.0
_READ_BYTES: Final = 1 << 20
_SNIFFED_BYTES: Final = 256  # as many as `sniff_format` looks at
_LEAST_BYTES: Final = 60_000  # that an attempt must bring, so that failures are no longer in a row
_TIMEOUT: Final = httpx2.Timeout(30.0, connect=10.0)
_MOST_REDIRECTS: Final = 20
_TRY_LATER: Final = frozenset({408, 425, 429})  # and all from 500; other statuses stay what they are

Watcher = Callable[[int], None]
"""Gets the position in a file."""
Result = TypeVar("Result")


class RemoteFile(msgspec.Struct, frozen=True):
    """A file on a server, and its place here."""

    url: str
    path: Path
    checksum: str = ""
    """The published one, "md5:" or "sha256:" and its hexadecimal digits; empty if there is none."""
    num_bytes: int | None = None
    """The length that was announced."""
    is_picture: bool = False
    """Whether only a picture in an accepted format is taken."""


class NoAnswer(DataError):
    """A server gave no answer, or only such as may be another one later."""

    wait_s = 0.0
    """How long the server asks to wait, seconds."""


class _TryAgainError(Exception):
    """An answer that may be another one later."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Fetcher:
    """Asks servers. Threads may share it: a pause that a host asks for holds for all of them.

    Proxies come from the usual variables, such as HTTPS_PROXY. A redirect may not lead into a private network.
    """

    def __init__(
        self,
        *,
        attempts: int = 10,
        pause_s: float = 0.0,
        max_bytes: float = math.inf,
        max_s: float = math.inf,
        tell: Callable[[str], None] = print,
    ) -> None:
        """Makes one.

        Args:
            attempts: Failures in a row, with hardly a byte between them, that end a request.
            pause_s: Least time between the starts of two requests to one host.
            max_bytes: Longest file of those whose length is not known before.
            max_s: Longest time for a file.
            tell: Gets a sentence before a pause, and about a file that starts again.
        """
        self.stopped = Event()
        """Once set, running transfers end with an error."""
        headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
        try:
            self._client = httpx2.Client(headers=headers, timeout=_TIMEOUT)
        except (httpx2.InvalidURL, ValueError, ImportError) as error:  # ImportError: SOCKS needs another package
            remedy = "correct HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
            raise DataError("a proxy of the environment cannot be used", value=error, remedy=remedy) from error
        self._attempts = attempts
        self._pause_s = pause_s
        self._max_bytes = max_bytes
        self._max_s = max_s
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
                return _extent(response)[1] if response.status_code == 200 else None

        return self._persist(url, ask, lambda: 0)

    def fetch(self, file: RemoteFile, *, watch: Watcher = lambda _: None) -> None:
        """Fetches a file; what an earlier run has of one with a checksum stays.

        Raises:
            DataError: The file cannot be fetched, is too long, is no picture or nobody knows whether it is whole; or it
                has another checksum or length: then it is called NAME.wrong.
            OSError: It cannot be written; what there is of it stays.
        """
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            part = _Part(file)

            def receive() -> None:
                while not self._append(file, part, watch):
                    pass  # a server may answer in pieces (RFC 9110, 15.3.7)

            self._persist(file.url, receive, lambda: part.position)
            _require_whole(file, part)
            self.require_content(part.path, file, watch)
            part.path.replace(file.path)
            sync(file.path.parent)
        except OSError as error:  # for example if the disk is full
            raise OSError(error.errno, error.strerror, str(file.path)) from error

    def require_content(self, path: Path, file: RemoteFile, watch: Watcher = lambda _: None) -> None:
        """Compares length and checksum of a copy with the published ones; a wrong copy is renamed to NAME.wrong.

        Raises:
            DataError: They differ.
        """
        found: object = path.stat().st_size
        wanted: object = file.num_bytes
        if file.checksum and wanted in {None, found}:
            wanted = file.checksum
            found = self._checksum(path, file.checksum.partition(":")[0], watch)
        if wanted not in {None, found}:
            aside = file.path.with_name(f"{file.path.name}.wrong")
            path.replace(aside)
            raise DataError(
                f"{file.url} is not the published file",
                value=found,
                limit=str(wanted),
                remedy=f"run the same command again to fetch it anew; this copy is {aside}",
            )

    def _checksum(self, path: Path, kind: str, watch: Watcher) -> str:
        digest = hashlib.new(kind, usedforsecurity=False)
        with path.open("rb") as stream:
            while chunk := stream.read(_READ_BYTES):
                self.go_on()
                digest.update(chunk)
                watch(stream.tell())
        return f"{kind}:{digest.hexdigest()}"

    def go_on(self) -> None:
        """Ends a transfer once `stopped` is set.

        Raises:
            DataError: It is.
        """
        if self.stopped.is_set():
            raise DataError("the transfer was stopped", remedy="run the same command again: it continues")

    def _append(self, file: RemoteFile, part: "_Part", watch: Watcher) -> bool:
        """Appends to a part what one answer gives from its end on, and returns whether that is the end of the file."""
        if not file.checksum:
            part.restart()
        headers = {"Range": f"bytes={part.position}-"} if part.position else {}
        with self._answer("GET", file.url, headers) as response:
            status = response.status_code
            start, total = _extent(response)
            if part.position and status == 200:
                self._tell(without_password(f"{file.url} comes from a server without Range: starting again"))
                part.restart()
            elif start != part.position or part.total not in {None, total} or (status == 416 and not start):
                part.restart()
                raise _TryAgainError(f"status {status} to a range, starting again")
            elif status == 416:
                return True
            part.total = total
            part.is_page = response.headers.get("Content-Type", "").startswith("text/html")
            self._require_length(file, part, total or 0)
            with part.path.open("r+b" if part.position else "wb") as stream:
                stream.truncate(part.position)
                stream.seek(part.position)
                for chunk in response.iter_raw():
                    self.go_on()
                    stream.write(chunk)
                    part.position += len(chunk)
                    watch(part.position)
                    self._require_length(file, part, part.position)
                    if monotonic() - part.began > self._max_s:
                        raise _TryAgainError(f"not whole after {self._max_s:g} s")
                stream.flush()
                os.fsync(stream.fileno())
        if status == 200 or part.position == total:
            return True
        if part.position == start or not file.checksum:
            raise _TryAgainError(f"only {part.position:,} of {'?' if total is None else f'{total:,}'} bytes came")
        return False

    def _require_length(self, file: RemoteFile, part: "_Part", num_bytes: int) -> None:
        most = self._max_bytes if file.num_bytes is None else file.num_bytes
        most = min(most, math.inf if part.total is None else part.total)
        if num_bytes > most:
            part.remove()
            raise DataError(f"{file.url} is too long", limit=f"at most {most / 1e6:g} MB", remedy="check the address")

    def _persist(self, url: str, action: Callable[[], Result], position: Callable[[], int]) -> Result:
        """Repeats an action until it succeeds, with pauses that grow while the position hardly does."""
        failures = 0
        furthest = position()
        while True:
            try:
                return action()
            # ValueError: IDNA, the port and the system's resolver; httpx2 lets them through.
            except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL, ValueError) as error:
                raise DataError(f"{url} cannot be fetched", value=error, remedy="correct the address") from error
            except (httpx2.TransportError, _TryAgainError) as error:
                reason = str(error) or type(error).__name__
                wait_s = error.wait_s if isinstance(error, _TryAgainError) else 0.0
            failures = 1 if position() >= furthest + _LEAST_BYTES else failures + 1
            furthest = max(furthest, position())
            if failures >= self._attempts:
                remedy = "check connection and proxy variables, and run the same command again: it continues"
                no_answer = NoAnswer(f"{url} cannot be fetched", value=reason, remedy=remedy)
                no_answer.wait_s = wait_s
                raise no_answer
            wait_s = max(wait_s, min(2.0 ** (failures - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0))
            self._tell(without_password(f"{url}: {reason}; again in {wait_s:.0f} s"))
            with self._lock:
                self._next_at[_host(url)] = max(self._next_at[_host(url)], monotonic() + wait_s)

    @contextmanager
    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Waits for its turn, and opens an answer: of status 2xx, 405 to HEAD or 416 to GET."""
        with self._lock:
            now = monotonic()
            start = max(now, self._next_at.get(_host(url), now))
            self._next_at[_host(url)] = start + self._pause_s
        if start > now:
            self._wait(start - now)
        self.go_on()
        request = self._client.build_request(method, url, headers=dict(headers))
        first = request.url
        for _ in range(_MOST_REDIRECTS):
            response = self._client.send(request, stream=True)
            if response.next_request is None:
                break
            response.close()
            request = response.next_request
            _require_public(request.url, first)
        else:
            raise httpx2.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects")
        with closing(response):
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
    """What is here of a file, as NAME.part."""

    def __init__(self, file: RemoteFile) -> None:
        self.path = file.path.with_name(f"{file.path.name}.part")
        self.began = monotonic()
        self.restart(self.path.stat().st_size if self.path.exists() else 0)

    def restart(self, position: int = 0) -> None:
        self.position = position
        self.total: int | None = None
        """Length of the file, as an answer announced it."""
        self.is_page = False

    def remove(self) -> None:
        self.restart()
        self.path.unlink(missing_ok=True)


def why_no_picture(path: Path, *, decodes: bool = False) -> str:
    """Returns why a file is no picture in an accepted format: by its first bytes, or by a decode of all."""
    try:
        with path.open("rb") as stream:
            sniff_format(stream.read(_SNIFFED_BYTES))
        if decodes:
            read_picture(path.read_bytes())
    except PictureError as error:
        return f"no picture: {error.value or 'cut off or damaged'}"
    return ""


def _require_whole(file: RemoteFile, part: _Part) -> None:
    """Refuses what is no picture, and what may be a part only."""
    why = ""
    remedy = "look at the address in a browser"
    if file.is_picture:
        why = why_no_picture(part.path, decodes=part.total is None)
    elif part.is_page and not file.checksum and file.path.suffix not in {".html", ".htm"}:
        why = "a page in place of the file"
    elif not file.checksum and part.total is None and file.num_bytes is None:
        why = "an answer without a length"
        remedy = "give its checksum, as in https://HOST/FILE#md5=SUM"
    if why:
        part.remove()
        raise DataError(f"{file.url} cannot be fetched", value=why, remedy=remedy)


def _require_public(address: httpx2.URL, first: httpx2.URL) -> None:
    """Refuses a redirect into a private network; a first address there is the user's own choice."""
    if (address.host, address.port) == (first.host, first.port):
        return
    with suppress(OSError):  # without such a name it cannot be reached, or a proxy knows it
        for *_, place in socket.getaddrinfo(address.host, None):
            if not ip_address(str(place[0]).partition("%")[0]).is_global:
                raise DataError(f"{first} leads into a private network", value=address.host, remedy="check the address")


def _extent(response: httpx2.Response) -> tuple[int | None, int | None]:
    """Returns where in its file an answer begins, and how long the file is; None for what the answer does not tell."""
    if response.status_code == 200:
        return 0, _number(response.headers.get("Content-Length", ""))
    span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    return _number(total if response.status_code == 416 else span.partition("-")[0]), _number(total)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _host(url: str) -> str:
    return httpx2.URL(url).host
