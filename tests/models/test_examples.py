import hashlib
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from models.errors import BundleError
from models.examples import Example, Examples, write_examples
from tests.models.open_files import open_files

ROSE = Example("rosa", "00000-0.webp", "Ann", "CC-BY-4.0", "garden")
OTHER = Example("rosa", "00000-1.webp", "", "CC0-1.0", "garden")
DAISY = Example("bellis", "00001-0.webp", "Ben", "CC-BY-SA-3.0", "wild")
WEBP = b"RIFF\0\0\0\0WEBP"
PICTURES = [(each, WEBP + 5_000 * each.file.encode()) for each in (ROSE, OTHER, DAISY)]


def written(tmp_path, pictures=PICTURES):
    path = tmp_path / "examples.zip"
    assert write_examples(path, pictures) == len(pictures)
    return path


def opened(path):
    return Examples(path, hashlib.sha256(path.read_bytes()).hexdigest())


def test_pictures_are_read_as_they_were_written_and_in_their_order(tmp_path):
    examples = opened(written(tmp_path))
    assert examples.of("rosa") == [ROSE, OTHER]
    assert examples.of("bellis") == [DAISY]
    assert examples.of("acer") == []
    assert [(each, examples.picture(each)) for each in (ROSE, OTHER, DAISY)] == PICTURES


def test_threads_read_one_after_another(tmp_path, monkeypatch):
    examples, read, reading = opened(written(tmp_path)), zipfile.ZipFile.read, threading.Lock()

    def read_alone(archive, member):
        assert reading.acquire(blocking=False)
        time.sleep(0.02)
        reading.release()
        return read(archive, member)

    monkeypatch.setattr(zipfile.ZipFile, "read", read_alone)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(examples.picture, (ROSE, OTHER, DAISY))) == [data for _, data in PICTURES]


def test_equal_pictures_make_equal_files(tmp_path):
    first = written(tmp_path).read_bytes()
    assert written(tmp_path).read_bytes() == first


def test_a_file_that_replaces_the_loaded_one_is_not_shown(tmp_path):
    path = written(tmp_path)
    examples = opened(path)
    (tmp_path / "new").mkdir()
    written(tmp_path / "new", [(ROSE, WEBP + b"another rose")]).replace(path)
    assert examples.picture(ROSE) == PICTURES[0][1]
    del examples
    assert open_files(tmp_path) == []


def test_a_file_that_is_written_over_is_an_error_and_no_wrong_picture(tmp_path):
    path = written(tmp_path)
    examples = opened(path)
    written(tmp_path, [(each, data[::-1]) for each, data in PICTURES])
    with pytest.raises(BundleError, match=r"examples\.zip"):
        examples.picture(ROSE)


def test_a_file_with_another_hash_is_refused(tmp_path):
    with pytest.raises(BundleError, match="SHA-256"):
        Examples(written(tmp_path), "0" * 64)


def no_zip(path):
    path.write_bytes(b"no archive")


def without_list(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("00000-0.webp", b"rose")


def without_a_picture(path):
    with zipfile.ZipFile(path) as archive:
        index = archive.read("index.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("index.json", index)


def deflated(path):
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)


def encrypted(path):
    data = path.read_bytes()
    at = data.index(b"PK\1\2") + 8  # the flags of the first member in the directory
    path.write_bytes(data[:at] + b"\1" + data[at + 1 :])


def with_a_wrong_crc(path):
    path.write_bytes(path.read_bytes().replace(WEBP, WEBP.replace(b"\0", b"\1"), 1))


def with_a_picture_of(data):
    def write(path):
        write_examples(path, [(ROSE, data)])

    return write


HOSTILE = {
    no_zip: "not a zip file",
    without_list: "index.json",
    without_a_picture: "00000-0.webp",
    deflated: "compressed",
    encrypted: "encrypted",
    with_a_wrong_crc: "CRC",
    with_a_picture_of(b"<html>"): "not a WebP",
    with_a_picture_of(WEBP + bytes(1_000_000)): "1,000,012 bytes",
}


@pytest.mark.parametrize(("damage", "reason"), HOSTILE.items())
def test_a_file_of_a_stranger_is_an_error_that_names_it(damage, reason, tmp_path):
    path = written(tmp_path)
    damage(path)
    with pytest.raises(BundleError, match=rf"examples\.zip cannot be read.*{reason}"):
        opened(path)
