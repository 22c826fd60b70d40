import shutil
import threading

import pytest
from torch.utils.data import DataLoader, Dataset

from models.errors import DataError
from tests.training.loading.shards.prepared import write_mixed
from training.dataset.manifest import Manifest
from training.loading.cache import EncodedCache
from training.loading.storage import PictureStore
from training.processes import clean_context, end_with_parent


class Lengths(Dataset):
    """Bytes a row, so that a loader reads every picture."""

    def __init__(self, store):
        self.store = store

    def __len__(self):
        return len(self.store.manifest)

    def __getitem__(self, row):
        return len(self.store.read(row))


def test_what_was_put_is_found_and_nothing_else():
    cache = EncodedCache(4, 100)
    assert cache.put(2, b"rose")
    assert cache.put(0, b"iris")
    assert [cache.get(row) for row in range(4)] == [b"iris", None, b"rose", None]
    assert cache.used_bytes == 8


def test_a_full_cache_keeps_what_it_has_and_takes_what_still_fits():
    cache = EncodedCache(3, 10)
    assert cache.put(0, b"12345678")
    assert not cache.put(1, b"123")
    assert cache.put(2, b"12")
    assert [cache.get(row) for row in range(3)] == [b"12345678", None, b"12"]


def test_a_picture_is_kept_once():
    cache = EncodedCache(1, 10)
    assert cache.put(0, b"1234")
    assert cache.put(0, b"1234")
    assert cache.used_bytes == 4


def test_new_caches_are_empty_whatever_earlier_ones_held():
    for _ in range(3):
        cache = EncodedCache(50, 5000)
        assert all(cache.get(row) is None for row in range(50))
        for row in range(50):
            cache.put(row, b"x" * 99)
        del cache


def test_pictures_longer_than_a_word_can_tell_are_not_kept():
    cache = EncodedCache(1, 2**25)
    assert not cache.put(0, bytes(2**24))
    assert cache.get(0) is None


def test_more_than_the_machine_has_is_told_with_both_numbers():
    with pytest.raises(DataError, match=r"got 1099\.51 GB; expected at most \d+\.\d+ GB, which (/dev/shm|the machine)"):
        EncodedCache(10, 2**40)


def test_room_is_taken_only_as_pictures_come():
    before = shutil.disk_usage("/dev/shm").free
    cache = EncodedCache(10, 500_000_000)
    cache.put(0, b"x" * 1000)
    assert before - shutil.disk_usage("/dev/shm").free < 100_000_000


def test_threads_never_see_half_a_picture():
    cache, wrong = EncodedCache(200, 10_000_000), []

    def write_and_read():
        for row in range(200):
            data = bytes([row]) * (1000 + row)
            seen = cache.get(row)
            cache.put(row, data)
            wrong.extend(kept for kept in (seen or data, cache.get(row)) if kept != data)

    threads = [threading.Thread(target=write_and_read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(cache.get(row) is not None for row in range(200))


def test_the_second_pass_reads_nothing_from_the_disk(tmp_path):
    data = write_mixed(tmp_path / "data", num_train=10)
    manifest, rows = Manifest(data), list(range(16))
    loader = DataLoader(
        Lengths(PictureStore(manifest, EncodedCache(len(manifest), 10_000_000))),
        batch_size=4,
        sampler=rows,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=clean_context("training.loading.data"),
        worker_init_fn=end_with_parent,
    )
    first = [length for batch in loader for length in batch.tolist()]
    assert first == manifest.table["length"].to_pylist()
    shutil.rmtree(data / "pictures")
    rows.reverse()  # each of the four batches now goes to the other process
    assert [length for batch in loader for length in batch.tolist()] == first[::-1]
