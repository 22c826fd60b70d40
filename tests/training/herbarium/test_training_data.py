import shutil
from collections import Counter

import pytest
from PIL import Image

from models.errors import DataError
from tests.training.debug_data import DEBUG, debug_data
from training.dataset.manifest import INDEX_FILE, Manifest
from training.herbarium import training_data
from training.herbarium.training_data import SIDE_PX, SPLIT_OF_PICTURE, ensure_training_data
from training.recipe import DataRecipe


@pytest.fixture
def plain_pictures(monkeypatch):
    """Replaces drawings by gray squares, for tests that ignore the content; records the requested drawings."""
    made = []

    def draw_files(root, drawings, *, seed, workers):
        for drawing in drawings:
            (root / drawing.path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (drawing.width, drawing.height), "gray").save(root / drawing.path)
            made.append((seed, drawing))

    monkeypatch.setattr(training_data, "draw_files", draw_files)
    return made


def asked(folder, num_species=1):
    return DataRecipe(data=folder, drawn_species=num_species)


def files(folder):
    """Path -> content, without the index, which is written when the manifest is opened."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.name != INDEX_FILE}
    return {path: file.read_bytes() for path, file in found.items()}


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_seed_gives_the_same_pictures_anywhere_however_many_species(tmp_path, tmp_path_factory):
    ensure_training_data(asked(tmp_path / "again"), DEBUG.run.seed)
    again, whole = files(tmp_path / "again" / "pictures"), files(debug_data(tmp_path_factory) / "pictures")
    assert len(again) == len(SPLIT_OF_PICTURE)
    assert again.items() <= whole.items()


def test_another_seed_is_another_flora(plain_pictures, tmp_path):
    floras = []
    for seed in (0, 1):
        ensure_training_data(asked(tmp_path / str(seed), num_species=3), seed)
        floras.append({taxon.scientific_name for taxon in Manifest(tmp_path / str(seed)).taxonomy.taxa})
    assert not floras[0] & floras[1]
    assert [drawn_with for drawn_with, _ in plain_pictures] == [0] * 36 + [1] * 36


def test_the_data_can_be_moved(plain_pictures, tmp_path):
    ensure_training_data(asked(tmp_path / "here"), seed=0)
    ensure_training_data(asked(tmp_path / "there"), seed=0)
    assert files(tmp_path / "here") == files(tmp_path / "there")
    shutil.move(tmp_path / "here", tmp_path / "moved")
    moved = Manifest(tmp_path / "moved")
    assert all(moved.path(row).is_file() for row in range(len(moved)))


def test_nothing_is_drawn_if_data_exists_or_none_is_requested(plain_pictures, tmp_path):
    ensure_training_data(asked(tmp_path / "none", num_species=0), seed=0)
    assert not (tmp_path / "none").exists()
    ensure_training_data(asked(tmp_path / "data"), seed=0)
    before, num_made = files(tmp_path / "data"), len(plain_pictures)
    ensure_training_data(asked(tmp_path / "data", num_species=3), seed=1)
    assert (files(tmp_path / "data"), len(plain_pictures)) == (before, num_made)


@pytest.mark.parametrize("exists", [False, True])
def test_an_interrupted_drawing_leaves_nothing_and_can_be_repeated(exists, plain_pictures, tmp_path, monkeypatch):
    data = tmp_path / "runs" / "data"
    if exists:
        data.mkdir(parents=True)

    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(training_data, "write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_training_data(asked(data), seed=0)
    assert plain_pictures
    assert not files(tmp_path)
    ensure_training_data(asked(data), seed=0)
    assert len(Manifest(data)) == len(SPLIT_OF_PICTURE)
    assert [path.name for path in data.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_folder_with_other_files_is_rejected_unchanged(kind, tmp_path):
    mine = tmp_path / "data" if kind == "file" else tmp_path / "data" / "my plants.jpg"
    mine.parent.mkdir(exist_ok=True)
    mine.write_bytes(b"precious")
    with pytest.raises(DataError, match=r"holds other files.*--drawn-species 0"):
        ensure_training_data(asked(tmp_path / "data"), seed=0)
    assert mine.read_bytes() == b"precious"


def test_of_two_processes_that_draw_at_once_the_first_one_creates_the_data(plain_pictures, tmp_path, monkeypatch):
    ensure_training_data(asked(tmp_path / "theirs"), seed=0)
    write_manifest = training_data.write_manifest

    def overtaken(*arguments):
        write_manifest(*arguments)
        shutil.copytree(tmp_path / "theirs", tmp_path / "data")

    monkeypatch.setattr(training_data, "write_manifest", overtaken)
    ensure_training_data(asked(tmp_path / "data"), seed=0)
    assert files(tmp_path / "data") == files(tmp_path / "theirs")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "theirs"}
