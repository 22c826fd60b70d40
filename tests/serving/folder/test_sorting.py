"""Photographs are sorted into folders by name."""

import pytest

from serving.folder.photographs import LocalFolder, Photograph
from serving.folder.plants import Plant
from serving.folder.sorting import folder_name, sort_photographs

SPECIES = {"status": "ok", "verdict_rank": "species", "verdict_name": "Rosa × alba", "genus": "Rosa", "family": None}
GENUS = {"status": "ok", "verdict_rank": "genus", "verdict_name": "Rosa", "genus": "Rosa", "family": "Rosaceae"}
NOTHING = {"status": "ok", "verdict_rank": "not_a_plant", "verdict_name": None}
FAILED = {"status": "failed", "verdict_rank": None, "verdict_name": None}


@pytest.mark.parametrize(
    ("row", "rank", "name"),
    [
        (SPECIES, "species", "Rosa × alba"),
        (SPECIES, "genus", "Rosa"),
        (SPECIES, "family", "_uncertain"),
        (GENUS, "species", "_uncertain"),
        (GENUS, "family", "Rosaceae"),
        (NOTHING, "genus", "_not_a_plant"),
        (FAILED, "species", "_failed"),
        (SPECIES | {"verdict_name": "../x"}, "species", "_x"),
        (SPECIES | {"verdict_name": ".."}, "species", "_"),
    ],
)
def test_folder_names(row, rank, name):
    assert folder_name(row, rank) == name


@pytest.mark.parametrize("links", [False, True])
def test_files_of_one_name_from_two_folders_stay_apart(tmp_path, links):
    paths = ("a/1.jpg", "b/1.jpg", "gone.jpg")
    for path in paths[:2]:
        (tmp_path / "photos" / path).parent.mkdir(parents=True)
        (tmp_path / "photos" / path).write_bytes(path.encode())
    plant = Plant("rose", tuple(Photograph(path, 7 if path != "gone.jpg" else -1, "1") for path in paths))
    rows = [SPECIES | {"group": "rose"}]
    for _ in range(2):
        store = LocalFolder(tmp_path / "photos")
        sort_photographs(rows, {"rose": plant}, store, tmp_path / "sorted", "genus", links=links)
    found = {path.name: (path.read_bytes(), path.is_symlink()) for path in (tmp_path / "sorted" / "Rosa").iterdir()}
    assert found == {"a__1.jpg": (b"a/1.jpg", links), "b__1.jpg": (b"b/1.jpg", links)}
