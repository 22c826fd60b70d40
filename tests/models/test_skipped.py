"""Searches for pictures skip the same on disks, in buckets and in archives."""

import zipfile

import pytest

from models.skipped import not_skipped, walk
from training.dataset.archive import archives_of
from training.dataset.sources.image_folder import read_image_folder
from training.loading.negatives import list_negatives

SHOWN = [
    "Bellis/7.jpg",
    "Rosa/1.jpg",
    "Rosa/deep/2.jpg",
    "Rosa/originals/3.jpg",
    "Rosa/Mac.photoslibrary/originals/4.jpg",
    "Rosa/old.aplibrary/Masters/2020/5.jpg",
    "Rosa/recycle/6.jpg",
]
SKIPPED = [
    "Rosa/@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg",
    "#recycle/1.jpg",
    "#snapshot/1.jpg",
    "~snapshot/1.jpg",
    "@tmp/1.jpg",
    "RECYCLER/1.jpg",
    "Network Trash Folder/1.jpg",
    "Temporary Items/1.jpg",
    "Rosa/@Recycle/1.jpg",
    "@Recently-Snapshot/1.jpg",
    ".@__thumb/1.jpg",
    "Rosa/@__thumb/1.jpg",
    "RECYCLED/1.jpg",
    "Rosa/.thumbnails/1.jpg",
    "$RECYCLE.BIN/1.jpg",
    "$Recycle.Bin/1.jpg",
    "System Volume Information/1.jpg",
    "__MACOSX/Rosa/1.jpg",
    "Rosa/._1.jpg",
    "lost+found/1.jpg",
    "LOST.DIR/1.jpg",
    "trashbox/1.jpg",
    "Rosa/Catalog Previews.lrdata/1.jpg",
    "Rosa/Mac.photoslibrary/resources/derivatives/1.jpg",
    "Rosa/Mac.photoslibrary/1.jpg",
    "Rosa/Mac.photolibrary/1.jpg",
    "Rosa/Mac.migratedphotolibrary/1.jpg",
    "Rosa/silent/.nomedia",
    "Rosa/silent/1.jpg",
    "Rosa/silent/deep/1.jpg",
]


@pytest.fixture
def root(tmp_path):
    for path in SHOWN + SKIPPED:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


def test_on_a_disk(root):
    found = [f"{folder}/{name}".removeprefix(f"{root}/") for folder, _, files in walk(root) for name in files]
    assert sorted(found) == sorted(SHOWN)


def test_in_a_bucket():
    assert [*not_skipped(SHOWN + SKIPPED)] == SHOWN


def test_the_folder_that_was_asked_for_is_never_skipped(root):
    (root / "#recycle" / ".nomedia").touch()
    assert [files for _, _, files in walk(root / "#recycle")] == [["1.jpg"]]


def test_in_class_folders_and_in_an_archive_of_them(root):
    with zipfile.ZipFile(root / "plants.zip", "w") as archive:
        for path in SHOWN + SKIPPED:
            archive.write(root / path, f"plants/{path}")
    (root / "._plants.zip").touch()
    assert archives_of(root) == [root / "plants.zip"]
    for source in (root, root / "plants.zip"):
        contents = read_image_folder("plants", source)
        assert [record.path for record in contents.records] == sorted(SHOWN)
        assert contents.left_out == []


def test_among_negatives(root, monkeypatch):
    monkeypatch.setattr("training.loading.negatives._has_header", lambda _: True)
    assert [path.relative_to(root).as_posix() for path in list_negatives((root,)).paths] == sorted(SHOWN)
