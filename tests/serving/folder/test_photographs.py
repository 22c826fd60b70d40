"""Photographs are found in folders and buckets."""

import os
import uuid

import fsspec
import pytest

from models.errors import DataError
from serving.folder.photographs import LocalFolder, open_store

PATHS = ["a.jpg", "deep/b.PNG", "deep/er/c.heic"]
LEFT_OUT = [".hidden.jpg", ".folder/d.jpg", "notes.txt"]


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path):
    if request.param == "folder":
        for path in PATHS + LEFT_OUT:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(b"12345")
        return open_store(str(tmp_path))
    bucket = f"memory://{uuid.uuid4().hex}"
    for path in PATHS + LEFT_OUT:
        fsspec.filesystem("memory").pipe_file(f"{bucket}/{path}", b"12345")
    return open_store(bucket)


def test_photographs_are_found_by_their_names(store):
    assert sorted(found.path for found in store.find()) == PATHS
    assert {found.num_bytes for found in store.find()} == {5}


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
