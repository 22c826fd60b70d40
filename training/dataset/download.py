"""Downloads what a collection lists. Archives stay as they are: `prepare.py sources` reads them where they lie."""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import tyro
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from models.atomic_file import locked
from models.errors import DataError, without_password
from models.program import tell_next
from training.dataset.archive import stem
from training.dataset.collection import SourceEntry, checked_checksum, read_collection
from training.dataset.transfer import Fetcher, RemoteFile
from training.toml_file import Section

_AT_ONCE: Final = 3
_ATTEMPTS: Final = 10
_ATTEMPTS_TO_TELL: Final = 2  # nobody waits for minutes to hear sizes
_MOST_BYTES_OF_RECORD: Final = 100e6
_RECORD: Final = "/api/records/"
_RECORD_FILE: Final = "record.json"
_NAME: Final = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,199}")  # not hidden, as .lock is
_FORMS: Final = "https://HOST/FILE#md5=SUM or https://zenodo.org/api/records/N"


class Download(Section, frozen=True, kw_only=True):
    """Downloads the data sets of a collection, as archives; the same command continues, and checks what is there."""

    collection: tyro.conf.Positional[Path]
    """A TOML file, or the name of one in training/recipes."""
    root: Path = Path()
    """Folder that the data sets' roots are relative to."""
    without: tuple[str, ...] = ()
    """Sources to leave out."""
    mirror: str = ""
    """Address of a copy of the folder ROOT, such as an institute's, to download from instead of the publishers'
    addresses."""
    keep_free_gb: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """Disk that must stay free, for the packed pictures."""
    yes: bool = False
    """Do not ask before the download."""
    dry_run: bool = False
    """Tell sizes, free disk and licenses, and stop; only lists of files are fetched."""


class Plan(msgspec.Struct):
    """What is to be done for the sources of a collection."""

    files: list[RemoteFile] = []
    terms: list[str] = []
    """A sentence on the license of each source."""
    by_hand: list[str] = []
    """What is neither listed nor there: source and folder."""


class _RecordFile(msgspec.Struct, frozen=True):
    key: str
    size: int
    checksum: str
    links: dict[str, str]


class _Record(msgspec.Struct, frozen=True):
    files: list[_RecordFile]


def download(command: Download, *, tell: Callable[[str], None] = print) -> None:
    """Downloads and checks everything, after it has told size, free disk and licenses, and has asked.

    Raises:
        DataError: Something is not there in the end, the disk is too small, or nobody said yes. What is complete stays.
        RecipeError: The collection cannot be used.
    """
    collection = read_collection(command.collection, command.without)
    with locked(command.root, "another process downloads into this folder", remedy="wait for it"):
        attempts = _ATTEMPTS_TO_TELL if command.dry_run else _ATTEMPTS
        fetcher = Fetcher(tell=tell, attempts=attempts, max_bytes=_MOST_BYTES_OF_RECORD)
        plan = Plan()
        for name, entry in collection.sources.items():
            _add(plan, name, entry, command, fetcher)
        if not plan.files and not plan.by_hand:
            raise DataError("the collection lists no files", value=command.collection, remedy="set `files` of a source")
        _require_own_places(plan)
        missing = _tell_sizes(plan, command.root, tell)
        if command.dry_run:
            return
        free = shutil.disk_usage(command.root).free - command.keep_free_gb * 1e9
        _agree(plan, missing, free, command)
        _fetch_all(plan.files, Fetcher(tell=tell, max_bytes=free), tell)
    without = f" --without {' '.join(command.without)}" if command.without else ""
    tell("Complete")
    collection_and_root = f"{command.collection} --root {command.root}{without}"
    tell_next(f"python training/prepare.py sources {collection_and_root} --out DATA --shards PACKED")


def _add(plan: Plan, name: str, entry: SourceEntry, command: Download, fetcher: Fetcher) -> None:
    root = command.root / entry.root
    folder = root.parent if entry.layout == "table" or stem(root) else root
    inside = Path(os.path.relpath(folder, command.root))
    if entry.files and ".." in inside.parts:
        remedy = "give it a root below --root, or another --root"
        raise DataError(
            f"the files of {name} would be written elsewhere",
            value=folder,
            limit=f"a folder below {command.root}",
            remedy=remedy,
        )
    plan.terms.append(f"{name}: {entry.note or entry.license or 'its license is not known'}")
    if not entry.files and not root.exists():
        plan.by_hand.append(f"{name}: {root}")
    for text in entry.files:
        for file in _files(text, inside, command, fetcher):
            is_known = file.num_bytes is not None or (file.checksum and file.path.exists())
            num_bytes = file.num_bytes if is_known else fetcher.num_bytes(file.url)
            plan.files.append(msgspec.structs.replace(file, num_bytes=num_bytes))


def _require_own_places(plan: Plan) -> None:
    """Refuses two downloads to one place, of which the second would be taken for the first."""
    for place, number in Counter(file.path for file in plan.files).most_common(1):
        if number == 1:
            break
        problem = "files of the collection would be written over each other"
        remedy = "name the file once, or give the sources roots in folders of their own"
        raise DataError(problem, value=f"{number} for {place}", limit="one", remedy=remedy)


def _files(text: str, inside: Path, command: Download, fetcher: Fetcher) -> Iterator[RemoteFile]:
    """Yields the files that an entry of `files` stands for, as the mirror has them if there is one."""

    def file(url: str, checksum: str = "", num_bytes: int | None = None, name: str = "") -> RemoteFile:
        try:
            name = name or PurePosixPath(urlsplit(url).path).name
            if not (_NAME.fullmatch(name) and urlsplit(url).scheme in {"http", "https"}):
                raise ValueError("no file of the web")
            checksum = checked_checksum(checksum)
        except ValueError as error:
            limit = f"{_FORMS} ({error})"
            raise DataError(
                "`files` of a source cannot be used", value=text, limit=limit, remedy="correct it"
            ) from error
        if command.mirror:
            url = f"{command.mirror.rstrip('/')}/{(inside / name).as_posix()}"
        return RemoteFile(url, command.root / inside / name, checksum, num_bytes)

    if _RECORD in text:
        record = file(text, name=_RECORD_FILE)
        if not record.path.exists():  # a record with other files has another number
            fetcher.fetch(record)
        try:
            listed = msgspec.json.decode(record.path.read_bytes(), type=_Record).files
        except ValueError as error:
            raise DataError(f"{record.path} lists no files", value=error, remedy="remove it, and try again") from error
        for each in listed:
            yield file(each.links.get("self", ""), each.checksum, each.size, each.key)
    else:
        url, _, checksum = text.partition("#")
        yield file(url, checksum.replace("=", ":", 1))


def _tell_sizes(plan: Plan, root: Path, tell: Callable[[str], None]) -> int:
    """Tells what will be downloaded under which terms, and returns how many bytes of it are missing."""
    missing = 0
    for file in plan.files:
        size = "of unknown size" if file.num_bytes is None else f"{file.num_bytes / 1e9:.2f} GB"
        there = file.path.exists()
        if not there:
            part = file.path.with_name(f"{file.path.name}.part")
            missing += max(0, (file.num_bytes or 0) - (part.stat().st_size if part.exists() else 0))
        checked = "" if file.checksum else ", no published checksum: unchecked"
        tell(without_password(f"{file.url} to {file.path}: {'there already' if there else size}{checked}"))
    free = shutil.disk_usage(root).free
    tell(f"To download: {missing / 1e9:.2f} GB. Free in {root.resolve()}: {free / 1e9:.2f} GB.")
    for sentence in plan.terms:
        tell(f"  {sentence}")
    return missing


def _agree(plan: Plan, missing: int, free: float, command: Download) -> None:
    """Asks whether to download.

    Raises:
        DataError: The disk is too small, or the answer is not yes.
    """
    if plan.by_hand:
        remedy = "unpack the data set there by hand, or pass --without"
        raise DataError("the collection lists no files for a source", value="; ".join(plan.by_hand), remedy=remedy)
    if missing and missing > free:  # else some of it may be packed already
        raise DataError(
            "the disk is too small",
            value=f"{free / 1e9 + command.keep_free_gb:.2f} GB free",
            limit=f"{missing / 1e9:.2f} GB for the download and {command.keep_free_gb:.0f} GB to pack the pictures",
            remedy="give another --root, or leave out sources with --without",
        )
    if command.yes or all(file.path.exists() for file in plan.files):
        return
    asked = sys.stdin.isatty()
    if not asked or input("Download under these terms? [y/N] ").strip().lower() not in {"y", "yes"}:
        said = "the answer was not y" if asked else "there is no terminal to ask on"
        raise DataError("nothing is downloaded without a yes", value=said, remedy="pass --yes")


def _fetch_all(files: list[RemoteFile], fetcher: Fetcher, tell: Callable[[str], None]) -> None:
    """Fetches and checks several files at once; one that fails does not stop the others."""
    failed: list[Exception] = []
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty()) as progress,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        try:
            for future in as_completed([pool.submit(_complete, file, fetcher, progress, tell) for file in files]):
                error = future.exception()
                if isinstance(error, DataError | OSError):
                    failed.append(error)
                    tell(f"failed: {error}")
                else:
                    tell(future.result())
        finally:
            fetcher.stopped.set()  # after Ctrl-C
            pool.shutdown(cancel_futures=True)
    if failed:
        raise DataError(
            f"{len(failed)} of {len(files)} files could not be downloaded",
            value=failed[0],
            remedy="the same command continues; complete files stay",
        )


def _complete(file: RemoteFile, fetcher: Fetcher, progress: Progress, tell: Callable[[str], None]) -> str:
    """Makes sure of a file, and returns a sentence about it."""
    task = progress.add_task(file.path.name, total=file.num_bytes)

    def watch(position: int) -> None:
        progress.update(task, completed=position)

    done = "checked" if file.checksum else "unchecked"
    if file.path.exists():
        try:
            fetcher.require_content(file.path, file, watch)
        except DataError:
            fetcher.go_on()
            tell(f"{file.path} is not the published file: now NAME.wrong, and fetched again")
        else:
            return f"{file.path}: there already, {done}"
    fetcher.fetch(file, watch=watch)
    return f"{file.path}: {file.path.stat().st_size / 1e9:.2f} GB, {done}"
