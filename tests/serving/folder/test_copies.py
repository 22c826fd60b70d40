"""Photographs are sorted into folders by name."""

import errno
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.errors import InputError
from serving.folder.copies import copy_photographs, file_name, folder_name, require_outside
from serving.folder.photographs import LocalFolder, Photograph
from serving.folder.plants import Plant

SPECIES = {"status": "ok", "verdict_rank": "species", "verdict_name": "Rosa × alba"}
GENUS = {"status": "ok", "verdict_rank": "genus", "verdict_name": "Rosa"}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (SPECIES, "Rosa × alba"),
        (GENUS, "Rosa"),
        ({"status": "ok", "verdict_rank": "uncertain", "verdict_name": None}, "_uncertain"),
        ({"status": "ok", "verdict_rank": "not_a_plant", "verdict_name": None}, "_not_a_plant"),
        ({"status": "failed"}, "_failed"),
        (SPECIES | {"verdict_name": "../x"}, "_x"),
        (SPECIES | {"verdict_name": ".."}, "_"),
    ],
)
def test_folder_names(row, name):
    assert folder_name(row) == name


def test_files_of_one_name_from_two_folders_stay_apart(tmp_path):
    paths = ("a/1.jpg", "b/1.jpg", "gone.jpg")
    for path in paths[:2]:
        (tmp_path / "photos" / path).parent.mkdir(parents=True)
        (tmp_path / "photos" / path).write_bytes(path.encode())
    plant = Plant("rose", tuple(Photograph(path, 7 if path != "gone.jpg" else -1, "1") for path in paths))
    for _ in range(2):
        copy_photographs([plant], [GENUS], LocalFolder(tmp_path / "photos"), tmp_path / "to")
    found = {path.name: path.read_bytes() for path in (tmp_path / "to" / "Rosa").iterdir()}
    assert found == {"a__1.jpg": b"a/1.jpg", "b__1.jpg": b"b/1.jpg"}


PATHS = st.text("a_/.é", min_size=1, max_size=8) | st.integers(1, 300).map(lambda length: "é" * length + ".jpg")


@given(PATHS, PATHS)
@example("a/b.jpg", "a__b.jpg")
def test_two_paths_never_have_one_name(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)
    assert len(file_name(one).encode()) <= 230
    assert "/" not in file_name(one)


def test_a_file_that_cannot_be_copied_is_told_and_the_others_are_copied(tmp_path, capsys):
    photos, target = tmp_path / "photos", tmp_path / "sorted"
    (photos / "folder.jpg").mkdir(parents=True)
    (photos / "grown.jpg").write_bytes(b"1234567890")
    plant = Plant("rose", tuple(Photograph(path, 5, "1") for path in ("folder.jpg", "gone.jpg", "grown.jpg")))
    copy_photographs([plant], [GENUS], LocalFolder(photos), target)
    assert [(path.name, path.read_bytes()) for path in (target / "Rosa").iterdir()] == [("grown.jpg", b"1234567890")]
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert said.startswith(f"warning: 2 photographs are not in {target}, such as folder.jpg: [Errno 21]")


def test_a_copy_that_the_disk_has_no_room_for_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"1234567890")
    write = Path.write_bytes

    def write_half(path, content):
        write(path, content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    plant = Plant("rose", (Photograph("a.jpg", 10, "1"),))
    copy_photographs([plant], [GENUS], LocalFolder(tmp_path / "photos"), tmp_path / "to")
    assert list((tmp_path / "to" / "Rosa").iterdir()) == []


def test_copies_among_the_photographs_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_outside(tmp_path / "sorted", "photos")
    require_outside(tmp_path / "photos_sorted", "photos")
    require_outside(tmp_path, "s3://garden")
    for target, photographs in ((tmp_path / "photos" / "sorted", "photos"), (tmp_path / "sorted", ".")):
        with pytest.raises(InputError, match="--copy-to is inside"):
            require_outside(target, photographs)
