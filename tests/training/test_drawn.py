import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from models.errors import DataError, InputError
from tests.training.debug_data import DEBUG, debug_data
from training import drawn
from training.dataset.manifest import INDEX_FILE, Manifest
from training.drawn import (
    SIDE_PX,
    SPLIT_OF_PICTURE,
    Drawn,
    draw_plant,
    ensure_training_data,
    species_name,
    write_class_folders,
)
from training.recipe import DataRecipe


def asked(folder, num_species=1):
    return DataRecipe(data=folder, drawn_species=num_species)


def files(folder):
    """Path -> content, without the index, which is written when the manifest is opened."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.name != INDEX_FILE}
    return {path: file.read_bytes() for path, file in found.items()}


def test_a_picture_depends_on_species_and_number_alone():
    first = draw_plant(7, 3, 32)
    others = [draw_plant(7, 4, 32), draw_plant(6, 3, 32)]  # what is drawn in between must not matter
    assert first.tobytes() == draw_plant(7, 3, 32).tobytes()
    assert len({picture.tobytes() for picture in (first, *others)}) == 3


def test_species_can_be_told_apart_by_their_middle():
    def middle(species, picture):
        return np.asarray(draw_plant(species, picture, 32), dtype=float)[8:24, 8:24].mean(axis=(0, 1))

    known = np.array([np.mean([middle(species, picture) for picture in range(8)], axis=0) for species in range(4)])
    asked_about = [(species, middle(species, picture)) for species in range(4) for picture in range(8, 16)]
    right = [np.linalg.norm(known - color, axis=1).argmin() == species for species, color in asked_about]
    assert np.mean(right) > 0.9


def test_names_are_unique_and_kin_share_genus_and_family():
    names = [species_name(species) for species in range(19_200)]
    assert len({name.name for name in names}) == len({name.common_name for name in names}) == len(names)
    assert len({name.genus for name in names}) == len(names) // 4
    assert len({name.family for name in names}) == len(names) // 16
    assert all(name.name.startswith(f"{name.genus} ") for name in names)
    with pytest.raises(InputError, match="the species number is too high"):
        species_name(10**6)


def test_class_folders_have_both_names_and_the_pictures(tmp_path):
    made = write_class_folders(Drawn(out=tmp_path / "out", species=2, first=5, pictures=3, size_px=24))
    folders = Counter(path.partition("/")[0] for path in made)
    assert folders == {species_name(5).class_id: 3, species_name(6).class_id: 3}
    with Image.open(tmp_path / "out" / made[0]) as picture:
        assert (picture.format, picture.size) == ("JPEG", (24, 24))


def test_class_folders_are_not_drawn_into_others_files(tmp_path):
    mine = tmp_path / "mine.jpg"
    mine.write_bytes(b"precious")
    with pytest.raises(DataError, match="holds other files"):
        write_class_folders(Drawn(out=tmp_path))
    assert list(tmp_path.iterdir()) == [mine]


def test_every_split_has_pictures_of_every_drawn_species(tmp_path_factory):
    manifest = Manifest(debug_data(tmp_path_factory))
    num_species = DEBUG.data.drawn_species
    assert len(manifest.taxonomy.outputs) == len(manifest.taxonomy.taxa) == num_species
    assert all(taxon.rank == "species" and taxon.family for taxon in manifest.taxonomy.taxa)
    for split, count in Counter(SPLIT_OF_PICTURE).items():
        rows = manifest.rows_of(split)
        assert Counter(manifest.labels[rows].tolist()) == dict.fromkeys(range(num_species), count)
    for row in range(len(manifest)):
        with Image.open(manifest.path(row)) as picture:
            assert (picture.format, picture.size) == ("JPEG", (SIDE_PX, SIDE_PX))
    assert len(set(manifest.table["sha256"].to_pylist())) == len(manifest) == num_species * len(SPLIT_OF_PICTURE)


def test_pictures_are_the_same_anywhere_however_many_species(tmp_path, tmp_path_factory):
    ensure_training_data(asked(tmp_path / "again"))
    again, whole = files(tmp_path / "again" / "pictures"), files(debug_data(tmp_path_factory) / "pictures")
    assert len(again) == len(SPLIT_OF_PICTURE)
    assert again.items() <= whole.items()


def test_the_data_can_be_moved(tmp_path):
    ensure_training_data(asked(tmp_path / "here"))
    ensure_training_data(asked(tmp_path / "there"))
    assert files(tmp_path / "here") == files(tmp_path / "there")
    shutil.move(tmp_path / "here", tmp_path / "moved")
    moved = Manifest(tmp_path / "moved")
    assert all(moved.path(row).is_file() for row in range(len(moved)))


def test_nothing_is_drawn_if_data_exists_or_none_is_requested(tmp_path):
    ensure_training_data(asked(tmp_path / "none", num_species=0))
    assert not (tmp_path / "none").exists()
    ensure_training_data(asked(tmp_path / "data"))
    before = files(tmp_path / "data")
    ensure_training_data(asked(tmp_path / "data", num_species=3))
    assert files(tmp_path / "data") == before


@pytest.mark.parametrize("exists", [False, True])
def test_an_interrupted_drawing_leaves_nothing_and_can_be_repeated(exists, tmp_path, monkeypatch):
    data = tmp_path / "runs" / "data"
    if exists:
        data.mkdir(parents=True)

    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(drawn, "write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_training_data(asked(data))
    assert not files(tmp_path)
    ensure_training_data(asked(data))
    assert len(Manifest(data)) == len(SPLIT_OF_PICTURE)
    assert [path.name for path in data.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_folder_with_other_files_is_rejected_unchanged(kind, tmp_path):
    mine = tmp_path / "data" if kind == "file" else tmp_path / "data" / "my plants.jpg"
    mine.parent.mkdir(exist_ok=True)
    mine.write_bytes(b"precious")
    with pytest.raises(DataError, match=r"holds other files.*--drawn-species 0"):
        ensure_training_data(asked(tmp_path / "data"))
    assert mine.read_bytes() == b"precious"


def test_of_two_processes_that_draw_at_once_the_first_one_creates_the_data(tmp_path, monkeypatch):
    ensure_training_data(asked(tmp_path / "theirs"))
    write_manifest = drawn.write_manifest

    def overtaken(*arguments):
        write_manifest(*arguments)
        shutil.copytree(tmp_path / "theirs", tmp_path / "data")

    monkeypatch.setattr(drawn, "write_manifest", overtaken)
    ensure_training_data(asked(tmp_path / "data"))
    assert files(tmp_path / "data") == files(tmp_path / "theirs")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "theirs"}
