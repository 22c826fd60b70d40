"""Decodes every picture once, to find damage, sizes, hashes, and when and where it was taken.

A million pictures take hours, so this runs in many processes and keeps its results in a cache on disk: a later run
decodes only files that changed.
"""

import hashlib
import signal
import sqlite3
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import simplejpeg
from PIL import Image
from rich.progress import track

from models.errors import DataError, PictureError, UnreadableImage
from models.preprocess import read_picture
from training.dataset.sources.record import ImageInfo, LeftOut
from training.processes import clean_context, end_with_parent

# Raise this number when the same bytes may give another result, such as another perceptual hash.
_VERSION: Final = 6
_COMMIT_EVERY_S: Final = 1.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS pictures (
    path TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,  -- of the file
    outcome BLOB NOT NULL                                                          -- JSON of what was found
) WITHOUT ROWID"""


FileStamp = tuple[int, int]
"""Length and modification time (ns) of a file."""


class Failure(NamedTuple):
    """Why a picture cannot be used."""

    code: str
    reason: str


Outcome = ImageInfo | Failure
"""In JSON an object or an array, so that one is told from the other."""
OUTCOME: Final = msgspec.json.Decoder[Outcome](Outcome)


@contextmanager
def _results_cache(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the results of this run and of earlier ones, and commits at the end.

    Raises:
        DataError: The file is damaged, of another version, or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in {0, _VERSION}:
                raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version = {_VERSION}")
            try:
                yield database
            finally:
                database.commit()
    except sqlite3.OperationalError as error:  # full disk, read-only folder, lock
        raise DataError(
            f"the results cache {path} cannot be used",
            value=error,
            remedy="free disk space, or end the other program that uses it, and run again: it continues from there",
        ) from error
    except (sqlite3.DatabaseError, ValueError) as error:
        raise DataError(
            f"the results cache {path} is damaged or was written by another version",
            value=error,
            remedy="delete it: the pictures are then decoded again",
        ) from error


_HASHED_PX: Final = 32
# A JPEG may be decoded at 1/2, 1/4 or 1/8, down to this side. The hashes of 1,680 of 1,692 photographs then differ by
# at most 2 bits from those of a full decode. Damage is still found, because libjpeg reads the bitstream to its end at
# any scale.
_DECODED_SIDE_PX: Final = 4 * _HASHED_PX
_CUT_OFF: Final = "premature end of data segment"  # libjpeg's warning
_OF_THE_DISK: Final = ("missing_file", "unreadable_file")  # codes of failures that say nothing about the bytes
_CHUNK: Final = 16  # pictures in one task of a process; the error about a killed process names that many
_STAMPS_CHUNK: Final = 1000
_STAMPING_THREADS: Final = 16  # reading file sizes from a network disk is mostly waiting

_Task = tuple[str, FileStamp]
_Result = tuple[str, FileStamp, Outcome]


def examine(
    pictures: Sequence[tuple[str, Path]], *, cache: Path, workers: int, min_side_px: int
) -> list[ImageInfo | LeftOut]:
    """Decodes every picture (its id and file) that is not in the cache, an SQLite file.

    Returns:
        For each picture, in the order given, what was found or why it cannot be used: code "missing_file",
        "unreadable_file", "too_small" or that of a `PictureError`.

    Raises:
        DataError: The cache cannot be used, or a process died.
    """
    files = [str(file.absolute()) for _, file in pictures]
    unique = list(dict.fromkeys(files))
    with ThreadPool(_STAMPING_THREADS) as threads:
        found = dict(zip(unique, threads.map(_stamp, unique, _STAMPS_CHUNK), strict=True))
    outcomes: dict[str, Outcome] = {file: each for file, each in found.items() if isinstance(each, Failure)}
    stamps = {file: each for file, each in found.items() if not isinstance(each, Failure)}
    with _results_cache(cache) as database:
        for path, num_bytes, mtime_ns, outcome in database.execute("SELECT * FROM pictures"):
            if stamps.get(path) == (num_bytes, mtime_ns):
                outcomes[path] = OUTCOME.decode(outcome)
        tasks = [(path, stamp) for path, stamp in stamps.items() if path not in outcomes]
        committed_at = time.monotonic()
        with closing(_decode_all(tasks, workers, cache)) as chunks:
            for chunk in track(chunks, "Decoding", -(-len(tasks) // _CHUNK), disable=not tasks):
                outcomes.update((path, outcome) for path, _, outcome in chunk)
                # Only what follows from the bytes is stored: a failed read may succeed the next time.
                rows = [
                    (path, *stamp, msgspec.json.encode(outcome))
                    for path, stamp, outcome in chunk
                    if getattr(outcome, "code", "") not in _OF_THE_DISK
                ]
                database.executemany("REPLACE INTO pictures VALUES (?, ?, ?, ?)", rows)
                if time.monotonic() - committed_at > _COMMIT_EVERY_S:
                    database.commit()
                    committed_at = time.monotonic()
    return [
        usable(picture_id, outcomes[file], min_side_px) for (picture_id, _), file in zip(pictures, files, strict=True)
    ]


def usable(picture_id: str, outcome: Outcome, min_side_px: int) -> ImageInfo | LeftOut:
    """Returns what was found in a picture, or why it cannot be used: it failed, or is too small."""
    if isinstance(outcome, Failure):
        return LeftOut(picture=picture_id, code=outcome.code, reason=outcome.reason)
    side_px = min(outcome.width, outcome.height)
    if side_px < min_side_px:
        reason = f"its shorter side is {side_px} px; at least {min_side_px} px are required"
        return LeftOut(picture=picture_id, code="too_small", reason=reason)
    return outcome


def _stamp(file: str) -> FileStamp | Failure:
    try:
        status = Path(file).stat()
    except OSError as error:
        return _disk_failure(error)
    return status.st_size, status.st_mtime_ns


def _disk_failure(error: OSError) -> Failure:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Failure("missing_file", "the file does not exist")
    return Failure("unreadable_file", f"the file cannot be read: {error.strerror or error}")


def _decode_all(tasks: Sequence[_Task], workers: int, cache: Path) -> Generator[list[_Result], None, None]:
    """Decodes pictures in several processes; yields chunks of results as they finish.

    At most 2 chunks per process are submitted at a time, so that memory does not grow with the number of pictures.
    """
    if not tasks:
        return
    workers = max(workers, 1)
    context = clean_context("training.dataset.audit.examine", "scipy.fft")
    chunks = (tasks[start : start + _CHUNK] for start in range(0, len(tasks), _CHUNK))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_process)
    running: dict[Future[list[_Result]], Sequence[_Task]] = {}
    try:
        while True:
            for chunk in islice(chunks, 2 * workers - len(running)):
                running[pool.submit(_decode_chunk, chunk)] = chunk
            if not running:
                return
            done = wait(running, return_when=FIRST_COMPLETED).done
            # Results first: if a process died, they are still stored.
            for future in sorted(done, key=lambda future: future.exception() is not None):
                yield future.result()
                del running[future]
    except BrokenProcessPool as error:
        paths = sorted(path for chunk in running.values() for path, _ in chunk)
        hint = (
            "with --workers 1 the error names fewer pictures" if workers > 1 else "or leave out one of these at a time"
        )
        raise DataError(
            "a decoding process was killed: memory ran out, or a picture crashes the decoder",
            value=f"{len(paths)} pictures under way, from {paths[0]} to {paths[-1]}",
            remedy=f"run again with fewer --workers ({hint}); {cache} keeps the results so far",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_process() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    warnings.simplefilter("ignore")  # decoders print thousands of warnings about pictures that decode


def _decode_chunk(chunk: Sequence[_Task]) -> list[_Result]:
    return [(path, stamp, _decode(path)) for path, stamp in chunk]


def _decode(path: str) -> Outcome:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        return _disk_failure(error)
    return examine_bytes(path, data)


def examine_bytes(path: str, data: bytes) -> Outcome:
    """Decodes one picture.

    Raises:
        DataError: Memory ran out; the error names `path`.
    """
    try:
        picture = read_picture(data, min_side_px=_DECODED_SIDE_PX)
        if picture.is_cut_off:  # what the service answers with a warning is no picture to learn from
            raise UnreadableImage("the JPEG picture is cut off at its end")
        _require_whole(data)
    except PictureError as error:
        return Failure(error.code, error.problem if error.value is None else f"{error.problem} ({error.value})")
    except MemoryError as error:
        remedy = "run again with fewer --workers"
        raise DataError("memory ran out while decoding a picture", value=path, remedy=remedy) from error
    taken_at = picture.capture.taken_at
    return ImageInfo(
        sha256=hashlib.sha256(data).hexdigest(),
        num_bytes=len(data),
        width=picture.width,
        height=picture.height,
        perceptual_hash=perceptual_hash(picture.image),
        taken_at=taken_at and taken_at.replace(tzinfo=None),
        coordinates=picture.capture.coordinates,
    )


def perceptual_hash(image: Image.Image) -> int:
    """Returns the 64 bits of the package imagehash's `phash`, row by row, the first as the highest."""
    import scipy.fft  # for which --help does not wait

    pixels = np.asarray(image.convert("L").resize((_HASHED_PX, _HASHED_PX), Image.Resampling.LANCZOS))
    low = scipy.fft.dctn(pixels)[:8, :8]
    return int.from_bytes(np.packbits(low > np.median(low)).tobytes())


def _require_whole(data: bytes) -> None:
    """Rejects truncated JPEGs that end with a valid marker: Pillow decodes them half gray, without an error.

    Raises:
        UnreadableImage: The pixel data end too early.
    """
    if not simplejpeg.is_jpeg(data):
        return
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)  # reads every byte, smallest scale
    except ValueError as error:
        if _CUT_OFF in str(error):  # with its other warnings, all pixels are decoded
            raise UnreadableImage("the JPEG picture is truncated", value=error) from error
