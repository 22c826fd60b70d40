"""Every picture is decoded once: faults are found, a killed run resumes, and copies of a picture have near hashes."""

import io
import os
import sqlite3
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import ExifTags, Image

from models.errors import DataError
from tests.make import PHOTOS, kill_when
from tests.waiting import wait_until
from training.dataset.audit.examine import examine, perceptual_hash
from training.dataset.sources.record import ImageInfo, LeftOut
from training.drawn import draw_plant

LAYOUTS = PHOTOS / "layouts"
# EXIF orientation -> how to transpose a picture so that it is upright with this orientation.
TURNED_AWAY = {
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}
RESUME = """
import sys
from pathlib import Path
from training.dataset.audit.examine import examine
if __name__ == "__main__":
    pictures = [(path.name, path) for path in sorted(Path(sys.argv[1]).iterdir())]
    examine(pictures, cache=Path(sys.argv[2]), workers=1, min_side_px=1)
"""


@pytest.fixture
def examine_files(tmp_path):
    """Examines files of a folder, with its cache beside it."""

    def run(*files, min_side_px=32, workers=1):
        named = [(f"drawn:{file.name}", file) for file in files]
        return examine(named, cache=tmp_path / "audit.sqlite", workers=workers, min_side_px=min_side_px)

    return run


def jpeg(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **({"quality": 90} | options))
    return buffer.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def photograph(picture=0, size=(640, 480)):
    """A drawn plant at the size of a photograph."""
    return draw_plant(1, picture, 128).resize(size, Image.Resampling.BICUBIC)


def spoil(file):
    """Replaces a file's bytes, but keeps its length and modification time."""
    before = file.stat()
    file.write_bytes(b"x" * before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def bits_apart(first, second):
    return (first.perceptual_hash ^ second.perceptual_hash).bit_count()


def test_each_fault_is_found_with_its_reason_and_in_the_order_given(examine_files, tmp_path):
    sound = jpeg(photograph())
    png = io.BytesIO()
    Image.new("L", (8000, 9000)).save(png, "PNG")
    files = [
        write(tmp_path / "page.jpg", b"<html>not found</html>"),
        write(tmp_path / "empty.jpg", b""),
        write(tmp_path / "sound.jpg", sound),
        write(tmp_path / "truncated.jpg", sound[: len(sound) // 2]),
        tmp_path / "missing.jpg",
        write(tmp_path / "vast.png", png.getvalue()),
        write(tmp_path / "tiny.jpg", jpeg(photograph(size=(90, 20)))),
        tmp_path / "folder.jpg",
    ]
    files[-1].mkdir()
    found = examine_files(*files, workers=2)
    assert [entry.code if isinstance(entry, LeftOut) else "sound" for entry in found] == [
        "unsupported_format",
        "unsupported_format",
        "sound",
        "unreadable_image",
        "missing_file",
        "too_many_pixels",
        "too_small",
        "unreadable_file",
    ]
    assert [entry.picture for entry in found if isinstance(entry, LeftOut)][:2] == ["drawn:page.jpg", "drawn:empty.jpg"]
    assert found[0].reason.endswith("(text)")
    assert found[6].reason == "its shorter side is 20 px; at least 32 px are required"


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_a_damaged_end_is_found_though_the_picture_is_decoded_at_reduced_scale(options, examine_files, tmp_path):
    data = jpeg(photograph(size=(2048, 1536)), **options)  # for the hash, 1/8 of the scale would be enough
    kept = int(len(data) * 0.9)
    rest = np.random.default_rng(0).bytes(len(data) - kept)
    found = examine_files(
        write(tmp_path / "whole.jpg", data),
        write(tmp_path / "cut.jpg", data[:-200]),
        write(tmp_path / "scrambled.jpg", data[:kept] + rest),
        write(tmp_path / "zeros.jpg", data[:kept] + bytes(len(rest))),
    )
    assert isinstance(found[0], ImageInfo)
    assert [entry.code for entry in found[1:]] == ["unreadable_image"] * 3


def test_a_truncated_jpeg_is_found_with_an_end_marker_and_without_one(examine_files, tmp_path):
    whole = jpeg(photograph())
    write(tmp_path / "whole.jpg", whole + b"a tail that some cameras add")
    write(tmp_path / "cut.jpg", whole[: len(whole) // 2] + b"\xff\xd9")
    write(tmp_path / "without_end.jpg", whole[:-2])
    sound, cut, without_end = examine_files(*(tmp_path / f"{name}.jpg" for name in ("whole", "cut", "without_end")))
    assert isinstance(sound, ImageInfo)
    assert cut.code == "unreadable_image"
    assert "truncated" in cut.reason
    assert without_end.reason == "the JPEG picture is cut off at its end"


def test_copies_of_a_picture_have_hashes_within_4_bits(examine_files, tmp_path):
    for number in range(2):
        original = photograph(number, (720, 540))
        versions = {
            "original": jpeg(original, quality=95),
            "re-encoded": jpeg(original, quality=40),
            "half": jpeg(original.resize((360, 270), Image.Resampling.LANCZOS)),
            "twice": jpeg(original.resize((1440, 1080), Image.Resampling.BICUBIC)),
            "grey": jpeg(original.convert("L")),
        }
        for orientation, turn in TURNED_AWAY.items():
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = orientation
            versions[f"orientation {orientation}"] = jpeg(original.transpose(turn), exif=exif)
        files = [write(tmp_path / str(number) / f"{name}.jpg", data) for name, data in versions.items()]
        first, *others = examine_files(*files)
        assert [bits_apart(first, other) for other in others] == pytest.approx([2] * len(others), abs=2)
        assert {(entry.width, entry.height) for entry in others[-2:]} == {(720, 540)}


def test_an_unchanged_picture_is_not_opened_again(examine_files, tmp_path):
    files = [write(tmp_path / "p" / f"{number}.jpg", jpeg(photograph(number))) for number in range(3)]
    bad = write(tmp_path / "p" / "bad.jpg", b"no picture")
    before = examine_files(*files, bad)
    for file in (*files, bad):
        spoil(file)
    assert examine_files(*files, bad) == before


def test_a_changed_file_is_decoded_again(examine_files, tmp_path):
    file = write(tmp_path / "a.jpg", jpeg(photograph(size=(200, 100))))
    (before,) = examine_files(file)
    write(file, jpeg(photograph(size=(100, 200))))
    (after,) = examine_files(file)
    assert (before.width, after.width) == (200, 100)


def test_another_size_limit_needs_no_second_decoding(examine_files, tmp_path):
    file = write(tmp_path / "a.jpg", jpeg(photograph(size=(100, 50))))
    assert examine_files(file, min_side_px=60)[0].code == "too_small"
    spoil(file)
    assert isinstance(examine_files(file, min_side_px=50)[0], ImageInfo)


def test_a_file_that_could_not_be_read_is_tried_again(examine_files, tmp_path):
    path = tmp_path / "a.jpg"
    path.mkdir()
    assert examine_files(path)[0].code == "unreadable_file"
    path.rmdir()
    write(path, jpeg(photograph()))
    assert isinstance(examine_files(path)[0], ImageInfo)


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be read as one" * 99, None])
def test_a_damaged_cache_is_named_with_the_remedy(content, examine_files, tmp_path):
    cache = tmp_path / "audit.sqlite"
    file = write(tmp_path / "a.jpg", jpeg(photograph()))
    if content is None:  # a file of a later version
        with sqlite3.connect(cache) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
    else:
        cache.write_bytes(content)
    with pytest.raises(DataError, match=r"audit\.sqlite is damaged or was written by another version.*delete it"):
        examine_files(file)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "cache").mkdir()
    with pytest.raises(DataError, match=r"the results cache .* cannot be used"):
        examine([], cache=tmp_path / "cache", workers=1, min_side_px=1)


@pytest.mark.slow
def test_after_a_kill_only_unfinished_pictures_are_decoded_again(tmp_path):
    data = jpeg(photograph(size=(3000, 2250)))  # takes about 30 ms to decode
    files = [write(tmp_path / "p" / f"{number:03}.jpg", data) for number in range(120)]
    cache = tmp_path / "audit.sqlite"
    kill_when(lambda: rows(cache), sys.executable, "-c", RESUME, tmp_path / "p", cache)
    done = rows(cache)
    assert 0 < len(done) < len(files)
    for path in done:
        spoil(Path(path))
    found = examine([(file.name, file) for file in files], cache=cache, workers=2, min_side_px=1)
    assert {type(entry) for entry in found} == {ImageInfo}
    assert len(rows(cache)) == len(files)


def rows(cache):
    """The files whose results are committed to a cache."""
    if not cache.exists():
        return []
    database = sqlite3.connect(f"file:{cache}?mode=ro", uri=True)
    try:
        return [path for (path,) in database.execute("SELECT path FROM pictures")]
    except sqlite3.OperationalError:  # the table does not exist yet, or is locked
        return []
    finally:
        database.close()


@pytest.mark.slow
def test_a_killed_process_is_one_clear_error_and_loses_nothing(tmp_path):
    """The last file is a pipe without a writer, so the process that reads it hangs until it is killed."""
    files = [write(tmp_path / "p" / f"{number:03}.jpg", jpeg(photograph(number))) for number in range(20)]
    pipe = tmp_path / "p" / "pipe.jpg"
    os.mkfifo(pipe)
    killer = threading.Thread(target=kill_reader, args=(pipe, tmp_path / "audit.sqlite"), daemon=True)
    killer.start()
    named = [(file.name, file) for file in (*files, pipe)]
    with pytest.raises(DataError, match=r"was killed.*under way.*pipe\.jpg.*fewer --workers.*audit\.sqlite keeps"):
        examine(named, cache=tmp_path / "audit.sqlite", workers=2, min_side_px=1)
    killer.join()
    kept = rows(tmp_path / "audit.sqlite")
    assert 0 < len(kept) < len(files)
    for path in kept:
        spoil(Path(path))
    assert {type(entry) for entry in examine(named[:-1], cache=tmp_path / "audit.sqlite", workers=1, min_side_px=1)
            } == {ImageInfo}  # fmt: skip


def kill_reader(pipe, cache):
    """Kills the worker process that hangs in the pipe."""
    own = psutil.Process()

    def readers():
        return [child for child in own.children(recursive=True) if child.status() != "zombie" and hangs(child)]

    for child in wait_until(readers):
        child.kill()


def hangs(process):
    """Whether a process is one of a pool that has begun to wait for a pipe."""
    try:
        return "wait_for_partner" in Path(f"/proc/{process.pid}/wchan").read_text()
    except OSError:
        return False


def test_hashes_have_the_bits_of_those_that_are_stored():
    pictures = [*(draw_plant(species, 0, 64) for species in range(3)), Image.new("L", (50, 40), 77)]
    found = [f"{perceptual_hash(picture):016x}" for picture in pictures]
    assert found == ["b646be51447be382", "ba0325f3be3648a3", "b6090ca9d63e36dc", "8000000000000000"]


@pytest.mark.photos
def test_the_re_encoded_leak_is_near_its_original_and_nothing_else_is(examine_files):
    leak = LAYOUTS / "house_plants" / "Sunflower (Helianthus annuus)" / "leak.jpg"
    others = sorted((LAYOUTS / "inat2021" / "train").rglob("*.jpg"))
    first, *found = examine_files(leak, *others, workers=2)
    distances = sorted(bits_apart(first, other) for other in found)
    assert distances[0] <= 4
    assert distances[1] > 8
