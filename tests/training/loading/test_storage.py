import copy
import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from models.errors import DataError
from tests.models.open_files import open_files
from tests.training.loading.shards.prepared import write_mixed
from training.dataset.manifest import Manifest
from training.loading.shards import Pack, pack
from training.loading.storage import PictureStore


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_mixed(tmp_path_factory.mktemp("prepared"), num_train=12)


@pytest.fixture(scope="module")
def packed(prepared, tmp_path_factory):
    """Everything is copied, so that shards and files hold the same bytes."""
    out = tmp_path_factory.mktemp("packed") / "data"
    pack(Pack(data=prepared, out=out, short_side_px=512, shard_mb=0.02, workers=1))
    return out


@pytest.fixture
def originals(prepared, packed):
    paths = Manifest(packed).table["path"].to_pylist()
    return [(prepared / "pictures" / path).read_bytes() for path in paths]


@pytest.fixture
def bucket(packed):
    """The shards in an object store that counts its rounds of requests."""

    class CountingStore(MemoryFileSystem):
        protocol = "counting"
        rounds = []  # noqa: RUF012

        def cat_ranges(self, paths, starts, ends, **options):
            self.rounds.append(list(zip(paths, starts, ends, strict=True)))
            return super().cat_ranges(paths, starts, ends, **options)

    fsspec.register_implementation("counting", CountingStore, clobber=True)
    store = CountingStore()
    for path in packed.glob("*.tar"):
        store.pipe(f"counting://flowers/{path.name}", path.read_bytes())
    yield store
    store.rm("counting://flowers", recursive=True)


def test_plain_files_and_shards_give_the_same_bytes(prepared, packed, originals):
    plain = {manifest_path: row for row, manifest_path in enumerate(Manifest(prepared).table["path"].to_pylist())}
    files, shards = PictureStore(Manifest(prepared)), PictureStore(Manifest(packed))
    for row, path in enumerate(Manifest(packed).table["path"].to_pylist()):
        assert files.read(plain[path]) == shards.read(row) == originals[row]


@pytest.mark.parametrize("shards", ["", "counting://flowers"])
def test_a_batch_keeps_its_order_and_may_repeat_rows(packed, originals, bucket, shards):
    rows = [5, 0, 17, 5, 9]
    assert PictureStore(Manifest(packed, shards)).read_many(rows) == [originals[row] for row in rows]


def test_a_batch_is_read_from_an_object_store_in_one_round(packed, originals, bucket):
    store = PictureStore(Manifest(packed, "counting://flowers"))
    assert store.read_many(range(len(originals))) == originals
    assert len(bucket.rounds) == 1
    shards = len(list(packed.glob("*.tar")))
    assert len(bucket.rounds[0]) == shards < len(originals)  # neighbors are one request


def test_pictures_far_apart_are_not_read_together(packed, originals, bucket, monkeypatch):
    monkeypatch.setattr("training.loading.storage._MOST_GAP_BYTES", 2000)
    first, last = 0, max(row for row in range(18) if Manifest(packed).place(row).file == Manifest(packed).place(0).file)
    store = PictureStore(Manifest(packed, "counting://flowers"))
    assert last - first > 1
    assert store.read_many([last, first]) == [originals[last], originals[first]]
    assert len(bucket.rounds[-1]) == 2


def test_no_request_becomes_too_large(packed, originals, bucket, monkeypatch):
    monkeypatch.setattr("training.loading.storage._MOST_REQUEST_BYTES", 10_000)
    assert PictureStore(Manifest(packed, "counting://flowers")).read_many(range(18)) == originals
    assert all(end - start <= 10_000 or end - start in map(len, originals) for _, start, end in bucket.rounds[-1])


def test_the_error_of_a_missing_object_names_the_picture(packed, bucket):
    manifest = Manifest(packed, "counting://flowers")
    bucket.rm(manifest.place(4).file)
    with pytest.raises(DataError, match="a picture of the manifest cannot be read") as caught:
        PictureStore(manifest).read(4)
    assert manifest.name(4) in str(caught.value)


@pytest.mark.parametrize("is_remote", [True, False])
def test_the_error_of_a_truncated_shard_names_the_picture(is_remote, packed, bucket, tmp_path):
    for path in packed.glob("*.tar"):
        bucket.pipe(f"counting://flowers/{path.name}", path.read_bytes()[:600])
        (tmp_path / path.name).write_bytes(path.read_bytes()[:600])
    manifest = Manifest(packed, "counting://flowers" if is_remote else str(tmp_path))
    with pytest.raises(DataError, match="cut off") as caught:
        PictureStore(manifest).read(3)
    assert manifest.name(3) in str(caught.value)


@pytest.mark.parametrize("shards", ["s3://flowers", "nonsense://flowers"])
def test_the_error_of_an_unknown_protocol_names_its_package(packed, shards, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(DataError, match=rf"URLs like {shards}.*s3fs for s3://"):
        PictureStore(Manifest(packed, shards)).read(0)


def test_the_error_of_a_missing_file_names_the_picture(tmp_path):
    manifest = Manifest(write_mixed(tmp_path, num_train=2))
    manifest.path(1).unlink()
    with pytest.raises(DataError, match=f"cannot be read: {manifest.place(1).file}"):
        PictureStore(manifest).read(1)


def open_shards(folder):
    """The manifest's index beside them may be mapped."""
    return [path for path in open_files(folder) if path.endswith(".tar")]


def test_few_shards_are_open_at_the_same_time_and_all_are_read(packed, originals, monkeypatch):
    monkeypatch.setattr("training.loading.storage._MOST_OPEN_SHARDS", 1)
    manifest = Manifest(packed)
    store = PictureStore(manifest)
    assert [store.read(row) for row in (0, 17, 0, 17)] == [originals[row] for row in (0, 17, 0, 17)]
    assert len(open_shards(packed)) == 1
    del store
    assert open_shards(packed) == []


def test_a_used_store_can_be_sent_to_another_process(packed, originals):
    store = PictureStore(Manifest(packed))
    store.read(0)
    assert copy.deepcopy(store).read(0) == originals[0]
