import os
import shutil
from pathlib import Path

import pytest

from models.errors import DataError
from tests.training.loading.shards.prepared import write_mixed
from training.dataset.manifest import Manifest
from training.loading.shards import Verify, verify


@pytest.fixture
def copied(packed, tmp_path):
    return shutil.copytree(packed, tmp_path / "packed")


def test_intact_data_is_counted(packed):
    assert verify(Verify(data=packed, workers=1)) == 30


def test_a_flipped_bit_is_found_and_its_picture_named(copied):
    manifest = Manifest(copied)
    place = manifest.place(3)
    with Path(place.file).open("r+b") as stream:
        stream.seek(place.offset + place.length // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    with pytest.raises(DataError, match="another hash") as caught:
        verify(Verify(data=copied, workers=1))
    assert manifest.name(3) in str(caught.value)
    assert str(caught.value).count("another hash") == 1


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 600)])
def test_a_lost_or_truncated_shard_is_found_and_named(copied, damage):
    manifest = Manifest(copied)
    damage(manifest.place(0).file)
    with pytest.raises(DataError, match="is not a tar of these pictures") as caught:
        verify(Verify(data=copied, workers=1))
    assert f"{manifest.name(0)} cannot be read" in str(caught.value)


def test_damage_between_the_pictures_is_found(copied):
    manifest = Manifest(copied)
    place = manifest.place(1)
    with Path(place.file).open("r+b") as stream:
        stream.seek(place.offset - 512)
        stream.write(b"\xff" * 100)
    with pytest.raises(DataError, match="is not a tar of these pictures"):
        verify(Verify(data=copied, workers=1))


def test_plain_files_are_verified_too(tmp_path):
    data = write_mixed(tmp_path / "data", num_train=4)
    assert verify(Verify(data=data, workers=1)) == 10
    (data / "pictures" / "train" / "2.jpg").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"2\.jpg has another hash"):
        verify(Verify(data=data, workers=1))


def test_shards_may_be_in_another_folder(copied, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in copied.glob("*.tar"):
        shutil.move(path, elsewhere)
    assert verify(Verify(data=copied, shards=str(elsewhere), workers=1)) == 30
