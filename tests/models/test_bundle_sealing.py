"""A bundle is written atomically, and only inside its folder."""

import os

import pytest

from models.bundle import BUNDLE_FILE, TAXA_FILE
from models.bundle_record import NetworkFile
from models.errors import BundleError, InputError
from models.preprocess import InputSpec
from tests.models.test_bundle import edit, merge, refusal
from tests.models.tiny import (
    NETWORK,
    bundle_record,
    seal_tiny,
)


@pytest.fixture
def place(tmp_path):
    """A folder in which nothing may be left."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


# ---- paths in file names

TRAVERSALS = ["../secret", "a/b", "..", ".hidden", "", "a\\b", "nul\0"]


@pytest.mark.parametrize("name", [*TRAVERSALS, "/dev/null"])
@pytest.mark.parametrize("where", ["network", "part", "hash"])
def test_file_name_of_a_record_cannot_be_a_path(sealed, name, where):
    (sealed.parent / "secret").write_text("secret")

    patch = {
        "network": {"networks": {"fp32": {"file": name}}},
        "part": {"parts": {"ranges": name}},
        "hash": {"files": {name: "0" * 64}},
    }
    edit(sealed / BUNDLE_FILE, merge(patch[where]))
    assert f"{BUNDLE_FILE} cannot be read" in refusal(sealed)


@pytest.mark.parametrize("name", [*TRAVERSALS, "../../secret", BUNDLE_FILE, TAXA_FILE])
def test_sealing_writes_only_inside_the_folder(tmp_path, place, network_file, name):
    with pytest.raises(BundleError, match=r"in a bundle cannot have that name.*: rename it"):
        seal_tiny(place / "tiny", network_file, more_files={name: network_file})
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


# ---- sealing that fails


def test_existing_folder_is_not_overwritten(sealed, network_file):
    before = {path.name: path.read_bytes() for path in sealed.iterdir()}
    with pytest.raises(BundleError, match=r"immutable, and its folder already exists .*tiny\): choose a new folder"):
        seal_tiny(sealed, network_file, record=bundle_record(name="other"))
    assert {path.name: path.read_bytes() for path in sealed.iterdir()} == before
    assert [path.name for path in sealed.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"label_hash": "0" * 64}, "label hash"),
        ({"networks": {"fp32": NetworkFile("model.fp16.onnx", temperature=1.0)}}, "has no hash for model.fp16.onnx"),
        ({"networks": {"fp32": NetworkFile(NETWORK, temperature=-1.0)}}, "temperature"),
        ({"input": InputSpec(height=1, width=8, train_px=8)}, "height"),
    ],
    ids=["hash", "file", "temperature", "input"],
)
def test_bundle_that_does_not_verify_leaves_nothing(place, network_file, change, expected):
    with pytest.raises(BundleError, match=expected):
        seal_tiny(place / "tiny", network_file, record=bundle_record(**change))


def test_missing_source_file_leaves_nothing(place):
    with pytest.raises((InputError, FileNotFoundError), match=r"model\.fp32\.onnx"):
        seal_tiny(place / "tiny", place / "nowhere" / NETWORK)


def test_all_files_are_on_the_disk_before_the_folder_has_its_name(tmp_path, network_file, monkeypatch):
    synced, write_to_disk = [], os.fsync

    def fsync(descriptor):
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / "tiny").exists()))
        write_to_disk(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = seal_tiny(tmp_path / "tiny", network_file).folder
    inside = {path.stat().st_ino for path in (*folder.iterdir(), folder)}
    assert {inode for inode, is_named in synced if not is_named} == inside
    assert [inode for inode, is_named in synced if is_named] == [tmp_path.stat().st_ino]
