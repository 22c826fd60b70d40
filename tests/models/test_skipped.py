"""Searches for pictures skip the same on disks, in buckets and in archives."""

import zipfile

import pytest

from models.skipped import not_skipped, walk
from tests.make import cases
from training.dataset.archive import archives_of
from training.dataset.sources.image_folder import read_image_folder
from training.loading.negatives import list_negatives

SHOWN, SKIPPED = (cases(__file__, name) for name in ("shown", "skipped"))


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
