import numpy as np
import pytest

from training.dataset.manifest import Manifest
from training.loading.shards.shard_files import PackOptions, estimate_bytes, make_plan

OPTIONS = PackOptions(short_side_px=64, shard_mb=0.02)


@pytest.fixture
def manifest(prepared):
    return Manifest(prepared)


def rows(plan, split):
    return np.concatenate([shard.rows for shard in plan.shards if shard.split == split])


def test_every_picture_has_one_place_and_splits_are_never_mixed(manifest):
    plan = make_plan(manifest, OPTIONS)
    assert sorted(np.concatenate([shard.rows for shard in plan.shards])) == list(range(len(manifest)))
    for split in ("train", "validation", "test"):
        assert sorted(rows(plan, split)) == manifest.rows_of(split).tolist()
    assert len({shard.name for shard in plan.shards}) == len(plan.shards) > 4


def test_training_pictures_are_shuffled_by_the_seed_and_others_are_not(manifest):
    plans = [make_plan(manifest, PackOptions(64, shard_mb=0.02, seed=seed)) for seed in (0, 0, 1)]
    shuffled = [rows(plan, "train").tolist() for plan in plans]
    assert shuffled[0] == shuffled[1]
    assert shuffled[0] != shuffled[2]
    assert shuffled[0] != sorted(shuffled[0])
    assert rows(plans[0], "test").tolist() == manifest.rows_of("test").tolist()


def test_shards_have_about_the_given_size(manifest):
    estimated = estimate_bytes(manifest, OPTIONS)
    sizes = [estimated[shard.rows].sum() for shard in make_plan(manifest, OPTIONS).shards if shard.split == "train"]
    assert max(sizes) < 1.3 * 20_000
    assert min(sizes) > 0.6 * 20_000


def test_pictures_larger_than_a_shard_give_no_empty_shard(manifest):
    plan = make_plan(manifest, PackOptions(64, shard_mb=0.001))
    assert [len(shard.rows) for shard in plan.shards] == [1] * len(manifest)


def test_copies_are_estimated_by_their_length_and_reduced_pictures_by_their_pixels(manifest):
    estimated = estimate_bytes(manifest, OPTIONS)
    lengths, paths = manifest.table["length"].to_pylist(), manifest.table["path"].to_pylist()
    for row in (paths.index("train/0.jpg"), paths.index("test/0.png")):
        assert lengths[row] <= estimated[row] <= lengths[row] + 1024
    assert 0.2 * 80 * 64 < estimated[paths.index("train/1.jpg")] - 768 < 0.4 * 80 * 64
