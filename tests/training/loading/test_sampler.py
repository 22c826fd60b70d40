import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.loading import sampler
from training.loading.sampler import EpochBatches, batches_left, epoch_counts, epoch_order

ORDERS = ["shuffled", "blocks"]
SAMPLINGS = ["every_picture", "square_root", "class_balanced"]
SIZES = [300, 40, 7, 1]
LABELS = np.random.default_rng(8).permutation(np.repeat([0, 2, 3, 5], SIZES))  # the outputs 1 and 4 have no pictures
ALL_ROWS = {"num_rows": len(LABELS), "labels": LABELS}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_pictures", [1, 2, 17, 64, 65, 5000])
def test_every_epoch_has_every_picture_once(num_pictures, order):
    for epoch in range(3):
        assert sorted(epoch_order(5, epoch, num_pictures, order)) == list(range(num_pictures))


def in_small_blocks(monkeypatch, block_size, window_blocks):
    monkeypatch.setattr(sampler, "BLOCK_SIZE", block_size)
    monkeypatch.setattr(sampler, "WINDOW_BLOCKS", window_blocks)


def test_the_order_is_the_same_on_every_machine_and_with_every_numpy(monkeypatch):
    assert epoch_order(17, 4, 8, "shuffled").tolist() == [5, 2, 7, 3, 6, 0, 1, 4]
    in_small_blocks(monkeypatch, 2, 3)
    assert epoch_order(17, 4, 11, "blocks").tolist() == [4, 10, 7, 5, 6, 2, 8, 1, 0, 9, 3]
    labels = np.array([0, 0, 3, 0, 0, 0, 0, 0, 2, 0, 0, 0])
    assert epoch_counts(17, 4, labels, "class_balanced").tolist() == [0, 1, 4, 0, 1, 0, 0, 0, 4, 1, 1, 0]


def test_blocks_are_shuffled_and_then_pictures_within_their_window(monkeypatch):
    in_small_blocks(monkeypatch, 8, 5)
    order = epoch_order(3, 1, 1000, "blocks")
    windows = np.split(order, range(40, 1000, 40))
    for window in windows:
        ordered = np.sort(window).reshape(5, 8)
        assert (ordered % 8 == range(8)).all()
        assert (ordered // 8 == ordered[:, :1] // 8).all()
        assert len(set(window[:8] // 8)) > 1  # no block comes by itself
    assert len({tuple(sorted(set(window // 8))) for window in windows}) == 25
    assert sorted(windows[0] // 8) != sorted(range(5))


def batches_from(first_picture=0, num_rows=23, batch_size=4, **options):
    batches = EpochBatches(np.arange(100, 100 + num_rows), batch_size, seed=3, **options)
    batches.epoch, batches.first_picture, batches.side_px = 2, first_picture, 64
    found = list(batches)
    assert len(batches) == len(found)
    return found


def rows_of(*ranks):
    """Rows in the order of training: step by step, and within a step rank by rank."""
    return [sample.row for step in zip(*ranks, strict=True) for batch in step for sample in batch]


@given(st.sampled_from(ORDERS), st.sampled_from(SAMPLINGS), st.integers(1, 30), st.integers(1, 4), st.integers(0, 5))
def test_any_ranks_take_up_an_epoch_with_the_samples_that_are_left_in_their_order(order, sampling, size, ranks, done):
    options = ALL_ROWS | {"order": order, "sampling": sampling}
    whole = [sample for batch in batches_from(batch_size=1, **options) for sample in batch]
    first, step = done * size * ranks, size * ranks
    by_rank = [batches_from(first, batch_size=size, rank=rank, num_ranks=ranks, **options) for rank in range(ranks)]
    left = [sample for step in zip(*by_rank, strict=True) for batch in step for sample in batch]
    assert left == whole[first : first + len(whole[first:]) // step * step]
    assert {len(batch) for batches in by_rank for batch in batches} <= {size}


def test_only_whole_global_batches_are_yielded_and_a_whole_epoch_has_at_least_one():
    assert (batches_left(23, 4), batches_left(24, 4), batches_left(3, 4)) == (5, 6, 1)
    assert (batches_left(23, 8, 8), batches_left(23, 8, 16), batches_left(23, 8, 23)) == (1, 0, 0)


def test_pictures_that_one_epoch_drops_are_in_others():
    shown = set()
    for epoch in range(4):
        batches = EpochBatches(np.arange(23), 4, seed=3)
        batches.epoch = epoch
        shown |= {sample.row for batch in batches for sample in batch}
    assert shown == set(range(23))


def test_data_smaller_than_a_global_batch_gives_one_short_batch_of_equal_size_on_every_rank():
    assert sorted(rows_of(batches_from(num_rows=3))) == [100, 101, 102]
    halves = [batches_from(num_rows=5, rank=rank, num_ranks=2) for rank in range(2)]
    assert [[len(batch) for batch in batches] for batches in halves] == [[2], [2]]
    assert len(set(rows_of(*halves))) == 4


def test_with_more_ranks_than_pictures_each_rank_has_one():
    ranks = [batches_from(num_rows=2, rank=rank, num_ranks=3) for rank in range(3)]
    assert [[len(batch) for batch in batches] for batches in ranks] == [[1]] * 3
    assert set(rows_of(*ranks)) == {100, 101}


def expected_samples(power):
    weights = np.array(SIZES) ** power
    return len(LABELS) * weights / weights.sum()


@pytest.mark.parametrize(("sampling", "power"), [("every_picture", 1), ("square_root", 0.5), ("class_balanced", 0)])
def test_classes_and_pictures_are_sampled_as_often_as_expected_rounded_up_or_down(sampling, power):
    for epoch in range(20):
        copies = epoch_counts(3, epoch, LABELS, sampling)
        assert copies.sum() == len(LABELS)
        for label, size, samples in zip([0, 2, 3, 5], SIZES, expected_samples(power), strict=True):
            found = copies[label == LABELS]
            assert abs(found.sum() - samples) < 1
            assert (abs(found - samples / size) < 1).all()


def test_the_rounding_favors_no_class():
    samples = [np.bincount(LABELS, epoch_counts(3, epoch, LABELS, "square_root")) for epoch in range(300)]
    assert np.mean(samples, axis=0)[[0, 2, 3, 5]] == pytest.approx(expected_samples(0.5), abs=0.12)


def test_epochs_sample_other_pictures_of_a_class_until_all_had_their_turn():
    large = np.array([epoch_counts(3, epoch, LABELS, "class_balanced")[LABELS == 0] for epoch in range(21)])
    assert (large.sum(axis=1) == 87).all()  # 348 samples for four classes, the largest of 300 pictures
    assert not (large[0] & large[1]).any()
    assert set(large[:4].sum(axis=0)) == {1, 2}
    assert np.ptp(large.sum(axis=0)) <= 2


@pytest.mark.parametrize("order", ORDERS)
def test_every_sample_of_a_picture_in_an_epoch_has_its_own_repeat(order):
    batches = batches_from(**ALL_ROWS, order=order, sampling="class_balanced")
    samples = [sample for batch in batches for sample in batch]
    assert len(samples) == len(set(samples)) == len(LABELS)
    times = Counter(sample.row for sample in samples)
    for sample in samples:
        assert sample.repeat < times[sample.row]
    assert max(times.values()) == 87  # the class of one picture


def test_the_samples_of_all_classes_are_shuffled():
    batches = batches_from(**ALL_ROWS, sampling="class_balanced")
    labels = [LABELS[sample.row - 100] for batch in batches for sample in batch]
    for part in np.split(np.array(labels), 4):
        assert min(np.bincount(part)[[0, 2, 3, 5]]) >= 10  # 21.75 of 87 on average


def test_a_sampling_by_class_needs_the_labels():
    with pytest.raises(ValueError, match="needs the label"):
        batches_from(sampling="square_root")


@pytest.fixture(scope="module")
def million():
    """Labels of 1.6 million pictures of 5,337 classes with a long tail."""
    shares = 1 / np.arange(1, 5338)
    return np.searchsorted(np.cumsum(shares / shares.sum()), np.random.default_rng(0).random(1_600_000)).clip(0, 5336)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_sampler_of_1600000_rows_starts_soon_and_holds_little(order, sampling, million):
    tracemalloc.start()
    try:
        started = time.process_time()  # of this process alone, however busy the machine is
        batches = EpochBatches(
            np.arange(len(million)), 16, 3, rank=1, num_ranks=2, order=order, sampling=sampling, labels=million
        )
        batches.first_picture, batches.side_px = 320_000, 64
        stream = iter(batches)
        first = next(stream)
        seconds, (held, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(first) == 16
    assert len(batches) == 40_000
    assert seconds < 10  # it guards against a start that is slower by far
    assert held < 30e6  # bytes
    assert peak < 120e6
