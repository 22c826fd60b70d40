import hashlib
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


def ensure(folder, num_species=1):
    ensure_training_data(DataRecipe(data=folder, drawn_species=num_species))


def files(folder):
    """Path -> content, without the index, which is written when the manifest is opened."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.name != INDEX_FILE}
    return {path: file.read_bytes() for path, file in found.items()}


def test_a_picture_depends_on_species_and_number_alone():
    digests = [hashlib.md5(draw_plant(*which, 32).tobytes()).hexdigest()[:6] for which in ((7, 3), (7, 4), (6, 3))]
    assert digests == ["d178b7", "f850d1", "24075b"]


def test_species_can_be_told_apart_by_their_middle():
    def middle(species, picture):
        return np.asarray(draw_plant(species, picture, 32), dtype=float)[8:24, 8:24].mean(axis=(0, 1))

    known = np.array([np.mean([middle(species, picture) for picture in range(8)], axis=0) for species in range(4)])
    asked_about = [(species, middle(species, picture)) for species in range(4) for picture in range(8, 16)]
    right = [np.linalg.norm(known - color, axis=1).argmin() == species for species, color in asked_about]
    assert np.mean(right) > 0.9


def test_names_are_unique_and_kin_share_genus_and_family():
    names = [species_name(species) for species in range(32_000)]
    assert len({name.name for name in names}) == len({name.common_name for name in names}) == len(names)
    assert len({name.genus for name in names}) == len(names) // 4
    assert len({name.family for name in names}) == len(names) // 16
    assert all(name.name.startswith(f"{name.genus} ") for name in names)
    with pytest.raises(InputError, match="the species number is too high"):
        species_name(32_000)


def test_class_folders_have_both_names_and_the_pictures(tmp_path):
    made = write_class_folders(Drawn(out=tmp_path / "out", species=2, first=5, pictures=3, size_px=24))
    folders = Counter(path.partition("/")[0] for path in made)
    assert folders == {species_name(5).class_id: 3, species_name(6).class_id: 3}
    with Image.open(tmp_path / "out" / made[0]) as picture:
        assert (picture.format, picture.size) == ("JPEG", (24, 24))


def test_every_split_has_pictures_of_every_drawn_species(tmp_path_factory):
    manifest = Manifest(debug_data(tmp_path_factory))
    num_species = DEBUG.data.drawn_species
    assert len(manifest.taxonomy.outputs) == len(manifest.taxonomy.taxa) == num_species
    assert all(taxon.rank == "species" and taxon.family for taxon in manifest.taxonomy.taxa)
    for split, count in Counter(SPLIT_OF_PICTURE).items():
        rows = manifest.rows_of(split)
        assert Counter(manifest.labels[rows].tolist()) == dict.fromkeys(range(num_species), count)
    with Image.open(manifest.path(0)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (SIDE_PX, SIDE_PX))
    assert len(set(manifest.table["sha256"].to_pylist())) == len(manifest) == num_species * len(SPLIT_OF_PICTURE)


def test_data_are_the_same_anywhere_however_many_species_and_can_be_moved(tmp_path, tmp_path_factory):
    ensure(tmp_path / "here")
    ensure(tmp_path / "there")
    here = files(tmp_path / "here")
    assert here == files(tmp_path / "there")
    pictures = files(tmp_path / "here" / "pictures")
    assert len(pictures) == len(SPLIT_OF_PICTURE)
    assert pictures.items() <= files(debug_data(tmp_path_factory) / "pictures").items()
    ensure(tmp_path / "here", num_species=3)  # nothing is drawn where data are
    assert files(tmp_path / "here") == here
    shutil.move(tmp_path / "here", tmp_path / "moved")
    moved = Manifest(tmp_path / "moved")
    assert all(moved.path(row).is_file() for row in range(len(moved)))
    ensure(tmp_path / "none", num_species=0)
    assert not (tmp_path / "none").exists()


def test_an_interrupted_drawing_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    data = tmp_path / "runs" / "data"
    data.mkdir(parents=True)

    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(drawn, "write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure(data)
    assert not files(tmp_path)
    ensure(data)
    assert len(Manifest(data)) == len(SPLIT_OF_PICTURE)
    assert [path.name for path in data.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("name", ["data", "data/my plants.jpg"])
def test_files_of_others_are_not_touched(name, tmp_path):
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_bytes(b"precious")
    with pytest.raises(DataError, match=r"holds other files.*--drawn-species 0"):
        ensure(tmp_path / "data")
    with pytest.raises(DataError, match="holds other files"):
        write_class_folders(Drawn(out=tmp_path / "data"))
    assert files(tmp_path) == {mine.relative_to(tmp_path): b"precious"}
