"""Looks at every picture once: does it decode, how large is it, what are its hashes.

Hours of work for a million pictures, so it runs in many processes and resumes: what was found out stands in a journal,
and a picture whose file is unchanged is not opened again.
"""

import hashlib
import signal
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

import imagehash
import numpy as np
import simplejpeg
from PIL import Image
from rich.progress import track

from models.errors import DataError, PictureError, UnreadableImage
from models.preprocess import read_picture
from training.dataset.audit.results_cache import Fault, ResultsCache, Stamp
from training.dataset.labeled_picture import ImageInfo
from training.dataset.sources.record import LeftOut
from training.processes import clean_context, end_with_parent

# A JPEG may be decoded at 1/2, 1/4 or 1/8 down to here, four times the 32 px that the hash is computed from: of 1,692
# photographs 1,680 then keep within 2 bits of what a full decode gives. Damage is found all the same, since libjpeg
# reads the bitstream to its end at any scale.
_HASHED_SIDE_PX: Final = 128
_CUT_OFF: Final = "premature end of data segment"  # libjpeg's warning
_CHUNK: Final = 16  # pictures handed to a process at once: a crash names no more than so many
_STAMPS_CHUNK: Final = 1000
_STAMPING_THREADS: Final = 16  # asking a network disk for file sizes is waiting, not work

_Waiting = tuple[str, Stamp]
_Looked = tuple[str, Stamp, ImageInfo | Fault]


def examine(
    pictures: Sequence[tuple[str, Path]], *, journal: Path, workers: int, min_side_px: int
) -> list[ImageInfo | LeftOut]:
    """Decodes every picture once, unless the journal knows it already.

    Args:
        pictures: LabeledPicture id and file of each; a file that is named twice is read once.
        journal: SQLite file that keeps what was found out, over kills and runs; made if missing.
        workers: Processes that decode.
        min_side_px: Pictures with a shorter side are too small.

    Returns:
        For each picture, in the order given, its facts or why it cannot be used: code "missing_file",
        "unreadable_file", "too_small" or that of a `PictureError`.

    Raises:
        DataError: The journal cannot be used, or a process died.
    """
    files = [str(file.absolute()) for _, file in pictures]
    outcomes, stamps = _stamp_files(list(dict.fromkeys(files)))
    with ResultsCache(journal) as kept:
        outcomes.update(kept.unchanged(stamps))
        waiting = [(path, stamp) for path, stamp in stamps.items() if path not in outcomes]
        for path, outcome in _look_and_keep(waiting, workers, kept):
            outcomes[path] = outcome
    return [
        _judge(picture_id, outcomes[file], min_side_px) for (picture_id, _), file in zip(pictures, files, strict=True)
    ]


def _look_and_keep(
    waiting: Sequence[_Waiting], workers: int, kept: ResultsCache
) -> Iterator[tuple[str, ImageInfo | Fault]]:
    num_chunks = -(-len(waiting) // _CHUNK)
    with closing(_look_at_all(waiting, workers, kept.path)) as chunks:
        for looked in track(chunks, "Decoding", num_chunks, disable=not waiting):
            # Only what the bytes say is kept: a disk that failed to answer may do so the next time.
            kept.add([entry for entry in looked if not _is_of_disk(entry[2])])
            yield from ((path, outcome) for path, _, outcome in looked)


def _judge(picture_id: str, outcome: ImageInfo | Fault, min_side_px: int) -> ImageInfo | LeftOut:
    if isinstance(outcome, Fault):
        return LeftOut(picture=picture_id, code=outcome.code, reason=outcome.reason)
    side_px = min(outcome.width, outcome.height)
    if side_px < min_side_px:
        reason = f"its shorter side is {side_px} px; at least {min_side_px} px are wanted"
        return LeftOut(picture=picture_id, code="too_small", reason=reason)
    return outcome


def _stamp_files(files: Sequence[str]) -> tuple[dict[str, ImageInfo | Fault], dict[str, Stamp]]:
    """Asks the disk for length and time of each file; those without are faults."""
    chunks = [files[start : start + _STAMPS_CHUNK] for start in range(0, len(files), _STAMPS_CHUNK)]
    faults: dict[str, ImageInfo | Fault] = {}
    stamps: dict[str, Stamp] = {}
    with ThreadPoolExecutor(_STAMPING_THREADS) as threads:
        for chunk, found in zip(chunks, threads.map(_stamp_chunk, chunks), strict=True):
            for file, stamp in zip(chunk, found, strict=True):
                if isinstance(stamp, Fault):
                    faults[file] = stamp
                else:
                    stamps[file] = stamp
    return faults, stamps


def _stamp_chunk(files: Sequence[str]) -> list[Stamp | Fault]:
    return [_stamp(file) for file in files]


def _stamp(file: str) -> Stamp | Fault:
    try:
        status = Path(file).stat()
    except OSError as error:
        return _disk_fault(error)
    return Stamp(status.st_size, status.st_mtime_ns)


def _disk_fault(error: OSError) -> Fault:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Fault("missing_file", "there is no such file")
    return Fault("unreadable_file", f"the file cannot be read: {error.strerror or error}")


def _is_of_disk(outcome: ImageInfo | Fault) -> bool:
    return isinstance(outcome, Fault) and outcome.code in {"missing_file", "unreadable_file"}


def _look_at_all(waiting: Sequence[_Waiting], workers: int, journal: Path) -> Generator[list[_Looked], None, None]:
    """Looks at pictures in several processes, in chunks, as they are done.

    Only a few chunks are under way at a time, so that memory does not grow with the number of pictures.
    """
    if not waiting:
        return
    workers = max(workers, 1)
    context = clean_context("training.dataset.audit.examine", "scipy.fftpack")
    chunks = (waiting[start : start + _CHUNK] for start in range(0, len(waiting), _CHUNK))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_process)
    running: dict[Future[list[_Looked]], Sequence[_Waiting]] = {}
    try:
        while True:
            for chunk in islice(chunks, 2 * workers - len(running)):
                running[pool.submit(_look_at_chunk, chunk)] = chunk
            if not running:
                return
            done = wait(running, return_when=FIRST_COMPLETED).done
            # Whole results first: if a process died, they still reach the journal.
            for future in sorted(done, key=lambda future: future.exception() is not None):
                yield future.result()
                del running[future]
    except BrokenProcessPool as error:
        raise _died(running, workers, journal) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _died(running: dict[Future[list[_Looked]], Sequence[_Waiting]], workers: int, journal: Path) -> DataError:
    paths = sorted(path for chunk in running.values() for path, _ in chunk)
    one = "with --workers 1 it is one of fewer pictures" if workers > 1 else "leave these out to find which"
    return DataError(
        "a process that decodes was killed: either memory ran out or a picture crashes the decoder",
        value=f"{len(paths)} pictures under way, from {paths[0]} to {paths[-1]}",
        remedy=f"run again with fewer --workers ({one}); {journal} keeps what is done",
    )


def _start_process() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is answered once, by the program
    warnings.simplefilter("ignore")  # decoders warn of oddities in pictures that decode: thousands of lines


def _look_at_chunk(chunk: Sequence[_Waiting]) -> list[_Looked]:
    return [(path, stamp, _look(path)) for path, stamp in chunk]


def _look(path: str) -> ImageInfo | Fault:
    try:
        data = Path(path).read_bytes()
        picture = read_picture(data, min_side_px=_HASHED_SIDE_PX)
        _require_whole(data)
    except PictureError as error:
        return Fault(error.code, error.problem if error.value is None else f"{error.problem} ({error.value})")
    except OSError as error:
        return _disk_fault(error)
    except MemoryError as error:
        raise DataError("memory ran out over a picture", value=path, remedy="run again with fewer --workers") from error
    return ImageInfo(
        sha256=hashlib.sha256(data).hexdigest(),
        num_bytes=len(data),
        width=picture.width,
        height=picture.height,
        perceptual_hash=_perceptual_hash(picture.image),
    )


def _require_whole(data: bytes) -> None:
    """Finds JPEGs that were cut off and closed again: Pillow shows them half gray and says nothing.

    Raises:
        UnreadableImage: The pixels end too early.
    """
    if not simplejpeg.is_jpeg(data):
        return
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)  # every byte, few pixels
    except ValueError as error:
        if _CUT_OFF in str(error):  # its other warnings are of oddities that cost no pixel
            raise UnreadableImage("the JPEG picture is cut off in the middle", value=error) from error


def _perceptual_hash(image: Image.Image) -> int:
    """The 64 bits row by row, the first as the highest, as `str(imagehash.phash(image))` writes them in hex."""
    bits = np.packbits(imagehash.phash(image, hash_size=8).hash)
    return int.from_bytes(bits.tobytes(), "big")
