import os
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

from models import atomic_file
from models.errors import DataError, InputError
from models.preprocess import upright_size
from tests.make import ran
from tests.training.loading.shards.prepared import OPTIONS, hashes, picture_bytes, write_prepared
from tests.training.small import require_one_line
from training.dataset.manifest import Manifest
from training.loading.negatives import UNKNOWN_PLANT, list_negatives
from training.loading.shards import Pack, Reduce, pack, packing, reduce_pictures
from training.loading.shards.packing import reduced
from training.loading.shards.shard_files import StoredPicture
from training.loading.storage import PictureStore

ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from models.program import clear_errors
from training.loading.shards import Pack, pack
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))  # Python ignores the signal: as a full disk
with clear_errors():
    pack(Pack(data=Path(sys.argv[1]), out=Path(sys.argv[2]), short_side_px=64, workers=1))
"""


def test_packed_rows_describe_the_same_pictures(prepared, packed):
    kept = ["picture_id", "source", "path", "label", "split", "group", "licence", "author"]
    before, after = (Manifest(folder).table.select(kept).to_pylist() for folder in (prepared, packed))
    assert before != after  # shuffled
    assert sorted(before, key=lambda row: row["path"]) == sorted(after, key=lambda row: row["path"])
    assert Manifest(packed).taxonomy == Manifest(prepared).taxonomy
    assert Manifest(packed).sources == Manifest(prepared).sources
    assert (Manifest(prepared).packed_from, Manifest(packed).packed_from) == ("", Manifest(prepared).sha256)


def test_the_manifest_describes_the_stored_bytes(packed):
    manifest = Manifest(packed)
    store = PictureStore(manifest)
    for row, facts in enumerate(manifest.table.to_pylist()):
        data = store.read(row)
        assert len(data) == facts["length"]
        assert upright_size(data) == (facts["width"], facts["height"])
        if facts["split"] == "train":
            assert min(facts["width"], facts["height"]) <= 64


def test_evaluation_pictures_and_small_ones_keep_their_bytes(prepared, packed):
    manifest = Manifest(packed)
    for row, facts in enumerate(manifest.table.to_pylist()):
        original = (prepared / "pictures" / facts["path"]).read_bytes()
        is_small = facts["path"].startswith("train/") and int(facts["path"][6:-4]) % 4 == 0
        assert (PictureStore(manifest).read(row) == original) == (facts["split"] != "train" or is_small)


def test_any_tar_reads_the_shards(packed):
    manifest = Manifest(packed)
    rows = manifest.table.select(["shard", "offset"]).to_pylist()
    shards = list(dict.fromkeys(row["shard"] for row in rows))
    places = [(shards.index(row["shard"]), row["offset"]) for row in rows]
    assert places == sorted(places)  # neighboring rows are neighboring bytes
    for path in packed.glob("*.tar"):
        with tarfile.open(path) as tar:
            found = [(member.offset_data, member.size) for member in tar]
            assert all(member.mtime == member.uid == 0 for member in tar)
        expected = [(row["offset"], row["length"]) for row in manifest.table.to_pylist() if row["shard"] == path.name]
        assert found == expected


def test_packing_again_writes_no_shard(prepared, packed, tmp_path):
    copied = shutil.copytree(packed, tmp_path / "data")
    before = hashes(copied)
    assert pack(Pack(data=prepared, out=copied, **OPTIONS)).num_written == 0
    assert hashes(copied) == before


@pytest.mark.parametrize("option", [{"quality": 91}, {"short_side_px": 65}, {"shard_mb": 0.021}, {"seed": 1}])
def test_a_folder_with_other_options_is_refused(prepared, packed, tmp_path, option):
    copied = shutil.copytree(packed, tmp_path / "data")
    (copied / "manifest.parquet").unlink()  # as when not all of it is there yet
    before = hashes(copied)
    with pytest.raises(DataError, match="packed with other options"):
        pack(Pack(data=prepared, out=copied, **(OPTIONS | option)))
    assert hashes(copied) == before


def test_packing_into_a_folder_with_other_data_is_refused(prepared, packed):
    with pytest.raises(DataError, match="holds other data"):
        pack(Pack(data=prepared, out=prepared, **OPTIONS))
    with pytest.raises(DataError, match="packed already"):
        pack(Pack(data=packed, out=prepared, **OPTIONS))


def test_the_last_part_writes_the_manifest_and_parts_equal_one_run(prepared, packed, tmp_path, capsys):
    first = pack(Pack(data=prepared, out=tmp_path / "data", part="1/2", **OPTIONS))
    assert len(first.missing) + first.num_written == first.num_shards
    assert not (tmp_path / "data" / "manifest.parquet").exists()
    assert "run the missing parts (0/2)" in capsys.readouterr().out
    assert pack(Pack(data=prepared, out=tmp_path / "data", part="0/2", **OPTIONS)).missing == ()
    assert hashes(tmp_path / "data") == {name: sha for name, sha in hashes(packed).items() if name != "manifest.arrow"}


@pytest.mark.parametrize("part", ["2/2", "3/2", "1", "0/0", "a/b", "-1/2"])
def test_a_malformed_part_is_refused(prepared, tmp_path, part):
    with pytest.raises(InputError, match="--part"):
        pack(Pack(data=prepared, out=tmp_path / "data", part=part, **OPTIONS))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("lost", ["tar", "parquet", "cut"])
def test_a_lost_file_is_packed_again_and_what_a_killed_run_left_is_removed(prepared, packed, tmp_path, lost):
    copied = shutil.copytree(packed, tmp_path / "data")
    before = hashes(copied)
    written_at = {path: path.stat().st_mtime_ns for path in copied.glob("*.tar")}
    (copied / ".train-00001.tar.123.part").write_bytes(b"half of it")
    if lost == "cut":
        os.truncate(copied / "train-00001.tar", 1000)
    else:
        (copied / f"train-00001.{lost}").unlink()
    assert pack(Pack(data=prepared, out=copied, **OPTIONS)).num_written == 1
    assert hashes(copied) == before
    assert [path.name for path, at_ns in written_at.items() if path.stat().st_mtime_ns != at_ns] == ["train-00001.tar"]


def test_a_changed_picture_is_an_error_and_leaves_no_partial_file(tmp_path):
    data = write_prepared(
        tmp_path / "data", [("a.jpg", "train", picture_bytes(1)), ("b.jpg", "train", picture_bytes(2))]
    )
    (data / "pictures" / "b.jpg").write_bytes(picture_bytes(3))
    with pytest.raises(DataError, match=r"changed since it was prepared: .*b\.jpg"):
        pack(Pack(data=data, out=tmp_path / "out", workers=1))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.untraced
def test_a_full_disk_is_one_line_and_leaves_no_partial_shard(tmp_path):
    pictures = [("a.jpg", "train", picture_bytes(0, (40, 40))), ("b.png", "test", picture_bytes(0, (200, 200), "PNG"))]
    data = write_prepared(tmp_path / "data", pictures)
    ended = ran(sys.executable, "-c", ON_A_FULL_DISK, data, tmp_path / "out")
    assert ended.returncode == 1
    require_one_line(ended.stderr, "file_system")
    assert "test-00000.tar" in ended.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train-00000.parquet", "train-00000.tar"]


def test_a_damaged_manifest_in_the_folder_is_one_clear_error(prepared, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.parquet").write_bytes(b"PA")
    with pytest.raises(DataError, match="the folder holds other data"):
        pack(Pack(data=prepared, out=tmp_path / "data", **OPTIONS))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["manifest.parquet"]


def test_unknown_plants_are_reduced_as_training_pictures_are_and_keep_their_paths(tmp_path):
    given, out = tmp_path / "strangers", tmp_path / "reduced"
    pictures = {"a/large.jpg": picture_bytes(0, (120, 96)), "a/small.jpg": picture_bytes(1, (60, 50))}
    for name, data in (pictures | {"broken.jpg": b"no picture"}).items():
        (given / name).parent.mkdir(parents=True, exist_ok=True)
        (given / name).write_bytes(data)
    listed = "path,split,scientific_name\na/large.jpg,fit,Rosa canina\na/small.jpg,test,Rosa rugosa\nbroken.jpg,fit,\n"
    (given / "labels.csv").write_text(listed)
    command = Reduce(pictures=given, out=out, short_side_px=64, quality=75, workers=1)
    assert reduce_pictures(command) == (2, 1)
    stored = [StoredPicture(data, "", *upright_size(data)) for data in pictures.values()]
    wanted = [reduced(each, 64, 75).data for each in stored]
    assert [(out / name).read_bytes() for name in pictures] == wanted
    assert list_negatives((out,), label=UNKNOWN_PLANT).sha256 == list_negatives((given,), label=UNKNOWN_PLANT).sha256
    assert (out / "labels.csv").read_text() == listed


def test_reducing_again_does_not_list_the_folder_for_each_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "worker_pool", lambda *_: ThreadPoolExecutor(1))
    (tmp_path / "labels.csv").write_text("path\n0.jpg\n1.jpg\n2.jpg\n")
    for seed in range(3):
        (tmp_path / f"{seed}.jpg").write_bytes(picture_bytes(seed, (60, 50)))
    command = Reduce(pictures=tmp_path, out=tmp_path / "out", workers=1)
    reduce_pictures(command)
    with patch.object(atomic_file, "remove_leftovers") as listing:
        assert reduce_pictures(command) == (3, 0)
    assert listing.call_count == 1  # for labels.csv


@pytest.mark.parametrize(("listed", "out"), [("../one.jpg", "out"), ("/tmp/one.jpg", "out"), ("one.jpg", "given")])
def test_pictures_are_never_reduced_over_others(listed, out, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "labels.csv").write_text(f"path\n{listed}\n")
    with pytest.raises(DataError, match="below the folder of the list"):
        reduce_pictures(Reduce(pictures=tmp_path / "given", out=tmp_path / out, workers=1))
