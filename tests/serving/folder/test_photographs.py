"""Photographs are found in folders and buckets."""

import os
import uuid
from collections import Counter

import fsspec
import pytest
from PIL import Image

from models.errors import DataError
from serving.folder.photographs import Bucket, LocalFolder, find_photographs, open_store
from tests.make import cases
from tests.models.pictures import encode

PATHS = ["a.jpg", "deep/b.PNG", "deep/er/c.heic"]
LEFT_OUT = {".hidden.jpg": b"1", "@eaDir/a.jpg/thumb.jpg": b"1", "deep/notes.txt": b"12345", "empty": b""}


@pytest.fixture(params=["folder", "bucket"])
def filled(request, tmp_path):
    """Makes a store with these files."""

    def fill(files):
        if request.param == "folder":
            for path, content in files.items():
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_bytes(content)
            return open_store(str(tmp_path))
        bucket = f"memory://{uuid.uuid4().hex}"
        for path, content in files.items():
            fsspec.filesystem("memory").pipe_file(f"{bucket}/{path}", content)
        return open_store(bucket)

    return fill


@pytest.fixture
def store(filled):
    return filled(dict.fromkeys(PATHS, b"12345") | LEFT_OUT)


def test_photographs_are_found_by_their_names(store):
    left_out = Counter()
    found = [*find_photographs(store, left_out)]
    assert [each.path for each in found] == PATHS
    assert {each.num_bytes for each in found} == {5}
    assert left_out == {".txt": 1, "no ending": 1}


def test_photographs_are_found_by_their_bytes_if_their_names_tell_nothing(filled, monkeypatch):
    photographs = {
        "1.jfif": "JPEG",
        "2.HIF": "HEIF",
        "3": "JPEG",
        "4.txt": "WEBP",
        "5.jpg_large": "PNG",
        "6.tif": "AVIF",
    }
    files = {name: encode(Image.new("RGB", (64, 64)), kind) for name, kind in photographs.items()}
    others = {"7.DNG": b"II*\0" + bytes(60), "8.DNG": b"II*\0", "9.MOV": bytes(4) + b"ftypqt  ", "a.jpg.json": b"{}"}
    copies = dict.fromkeys(("b.THM", "c.jpg_original", "d.jpg~"), files["1.jfif"])
    store, read, left_out = filled(files | others | copies | {"empty.bin": b""}), [], Counter()
    original = store.read
    monkeypatch.setattr(store, "read", lambda path, most: read.append((path, most)) or original(path, most))
    assert [each.path for each in find_photographs(store, left_out)] == [*photographs]
    assert left_out == {".DNG": 2, ".MOV": 1, ".json": 1, ".THM": 1, ".jpg_original": 1, ".jpg~": 1, ".bin": 1}
    assert sorted(read) == [(name, 256) for name in ["3", "4.txt", "5.jpg_large", "6.tif", *others]]


def test_a_file_that_cannot_be_read_and_has_no_name_of_a_photograph_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "notes.bin").write_bytes(b"12345")
    store, left_out = LocalFolder(tmp_path), Counter()
    monkeypatch.setattr(store, "read", lambda *_: open(tmp_path / "gone", "rb"))  # noqa: PTH123, SIM115
    assert [*find_photographs(store, left_out)] == []
    assert left_out == {".bin": 1}


@pytest.mark.parametrize(("beside", "sidecar"), cases(__file__, "sidecars"))
def test_the_xmp_file_beside_a_photograph_belongs_to_it(filled, beside, sidecar):
    store = filled(dict.fromkeys(["a/1.jpg", *beside], b"1"))
    found = next(find_photographs(store, Counter()))
    (listed,) = store.look_up_all(["a/1.jpg"])
    assert found.sidecar == sidecar
    assert listed.sidecar == ("" if isinstance(store, Bucket) else sidecar)


def test_no_more_is_read_than_asked_for(store):
    assert store.read("deep/b.PNG", 3) == b"123"
    assert store.read("deep/b.PNG") == b"12345"


def test_photographs_are_looked_up_in_the_order_of_the_list(store):
    paths = ["deep/b.PNG", "gone.jpg", "a.jpg"] * 700
    found = list(store.look_up_all(paths))
    assert [each.path for each in found] == paths
    assert [each.num_bytes for each in found] == [5, -1, 5] * 700


def test_links_to_folders_are_not_followed(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "circle").symlink_to(tmp_path)
    assert [found.path for found in LocalFolder(tmp_path).find()] == ["a.jpg"]


def test_a_missing_folder_is_one_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        list(LocalFolder(tmp_path / "gone").find())
    with pytest.raises(DataError, match="cannot be opened"):
        open_store("nothing://there")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("memory://mistyped", r"got memory:///?mistyped\): correct the address"),
        ("file:///mistyped/folder", r"got /mistyped/folder\): correct the path"),
    ],
)
def test_an_address_of_nothing_is_one_error(address, words):
    with pytest.raises(DataError, match=words):
        list(open_store(address).find())


def test_an_empty_bucket_is_no_error():
    bucket = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").mkdir(bucket)
    assert list(open_store(bucket).find()) == []


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_pipes_and_devices_are_never_listed_and_never_waited_for(tmp_path, scheme):
    store = open_store(f"{scheme}{tmp_path}")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    assert list(store.find()) == []
    for name in ("pipe.jpg", "device.jpg"):  # which they became after they were found
        with pytest.raises(DataError, match="no regular file"):
            store.read(name, 10)
    assert [(each.path, each.num_bytes) for each in store.look_up_all(["pipe.jpg", "."])] == [
        ("pipe.jpg", -1),
        (".", -1),
    ]
