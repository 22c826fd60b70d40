import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from training.loading.sampler import Draw, EpochBatches, batches_left, epoch_copies, epoch_order, side_at_epoch

ORDERS = ["shuffled", "blocks"]
SAMPLINGS = ["every_picture", "square_root", "class_balanced"]
SIZES = [300, 40, 7, 1]
LABELS = np.random.default_rng(8).permutation(np.repeat([0, 2, 3, 5], SIZES))  # the outputs 1 and 4 have no pictures


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_pictures", [1, 2, 17, 64, 65, 5000])
def test_every_epoch_shows_every_picture_once(num_pictures, order):
    for epoch in range(3):
        assert sorted(epoch_order(5, epoch, num_pictures, order)) == list(range(num_pictures))


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_follows_from_seed_and_epoch_alone(order):
    first = epoch_order(5, 2, 100, order)
    np.random.default_rng(0).random(7)
    assert (first == epoch_order(5, 2, 100, order)).all()
    assert (first != epoch_order(5, 3, 100, order)).any()
    assert (first != epoch_order(6, 2, 100, order)).any()


def test_the_order_is_the_same_on_every_machine_and_with_every_numpy():
    assert epoch_order(17, 4, 8).tolist() == [5, 2, 7, 3, 6, 0, 1, 4]
    blocks = epoch_order(17, 4, 11, "blocks", block_size=2, window_blocks=3)
    assert blocks.tolist() == [4, 10, 7, 5, 6, 2, 8, 1, 0, 9, 3]
    labels = np.array([0, 0, 3, 0, 0, 0, 0, 0, 2, 0, 0, 0])
    assert epoch_copies(17, 4, labels, "class_balanced").tolist() == [0, 1, 4, 0, 1, 0, 0, 0, 4, 1, 1, 0]


def test_blocks_of_neighbors_move_together_and_mix_within_their_window():
    order = epoch_order(3, 1, 1000, "blocks", block_size=8, window_blocks=5)
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
    return [draw.row for step in zip(*ranks, strict=True) for batch in step for draw in batch]


@pytest.mark.parametrize("first_batch", [0, 1, 4, 5])
def test_an_epoch_taken_up_again_gives_exactly_what_was_left(first_batch):
    assert batches_from(4 * first_batch) == batches_from()[first_batch:]


def test_draws_say_epoch_row_and_side():
    draws = [draw for batch in batches_from() for draw in batch]
    assert all(draw == Draw(2, draw.row, 64, copy=0) for draw in draws)
    assert len({draw.row for draw in draws}) == 20
    assert {draw.row for draw in draws} <= set(range(100, 123))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_several_ranks_see_at_every_step_what_one_rank_with_their_batches_together_sees(order, sampling):
    options = {"num_rows": len(LABELS), "order": order, "sampling": sampling, "labels": LABELS}
    alone = batches_from(batch_size=12, **options)
    ranks = [batches_from(batch_size=4, rank=rank, num_ranks=3, **options) for rank in range(3)]
    assert [a + b + c for a, b, c in zip(*ranks, strict=True)] == alone


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_another_number_of_ranks_goes_on_with_exactly_the_draws_that_were_left(order, sampling):
    options = {"num_rows": len(LABELS), "order": order, "sampling": sampling, "labels": LABELS}
    whole = [draw for batch in batches_from(batch_size=1, **options) for draw in batch]
    done = [draw for batch in batches_from(batch_size=4, **options)[:27] for draw in batch]
    ranks = [batches_from(108, batch_size=5, rank=rank, num_ranks=3, **options) for rank in range(3)]
    left = [draw for step in zip(*ranks, strict=True) for batch in step for draw in batch]
    assert done + left == whole[: 108 + 16 * 15]  # 348 draws: 108 done, 16 global batches of 15, none left


def test_only_whole_global_batches_are_given_and_every_rank_has_as_many():
    assert (batches_left(23, 4), batches_left(24, 4), batches_left(3, 4)) == (5, 6, 1)
    assert (batches_left(23, 8, 8), batches_left(23, 8, 16), batches_left(23, 8, 23)) == (1, 0, 0)
    assert [len(batch) for batch in batches_from()] == [4] * 5
    ranks = [batches_from(rank=rank, num_ranks=2) for rank in range(2)]
    assert [[len(batch) for batch in batches] for batches in ranks] == [[4, 4]] * 2
    assert rows_of(*ranks) == rows_of(batches_from())[:16]


def test_what_an_epoch_leaves_over_comes_in_others():
    shown = set()
    for epoch in range(4):
        batches = EpochBatches(np.arange(23), 4, seed=3)
        batches.epoch = epoch
        shown |= {draw.row for batch in batches for draw in batch}
    assert shown == set(range(23))


def test_data_smaller_than_one_global_batch_makes_one_short_batch_that_is_the_same_size_on_every_rank():
    assert sorted(rows_of(batches_from(num_rows=3))) == [100, 101, 102]
    halves = [batches_from(num_rows=5, rank=rank, num_ranks=2) for rank in range(2)]
    assert [[len(batch) for batch in batches] for batches in halves] == [[2], [2]]
    assert len(set(rows_of(*halves))) == 4


def test_where_ranks_outnumber_pictures_each_has_one():
    ranks = [batches_from(num_rows=2, rank=rank, num_ranks=3) for rank in range(3)]
    assert [[len(batch) for batch in batches] for batches in ranks] == [[1]] * 3
    assert set(rows_of(*ranks)) == {100, 101}


def expected_draws(power):
    weights = np.array(SIZES) ** power
    return len(LABELS) * weights / weights.sum()


@pytest.mark.parametrize(("sampling", "power"), [("every_picture", 1), ("square_root", 0.5), ("class_balanced", 0)])
def test_classes_and_pictures_come_as_often_as_expected_rounded_up_or_down(sampling, power):
    for epoch in range(20):
        copies = epoch_copies(3, epoch, LABELS, sampling)
        assert copies.sum() == len(LABELS)
        for label, size, draws in zip([0, 2, 3, 5], SIZES, expected_draws(power), strict=True):
            found = copies[label == LABELS]
            assert abs(found.sum() - draws) < 1
            assert (abs(found - draws / size) < 1).all()


def test_the_rounding_favors_no_class():
    draws = [np.bincount(LABELS, epoch_copies(3, epoch, LABELS, "square_root")) for epoch in range(300)]
    assert np.mean(draws, axis=0)[[0, 2, 3, 5]] == pytest.approx(expected_draws(0.5), abs=0.12)


def test_another_epoch_draws_other_pictures_of_a_class_until_all_had_their_turn():
    large = np.array([epoch_copies(3, epoch, LABELS, "class_balanced")[LABELS == 0] for epoch in range(21)])
    assert (large.sum(axis=1) == 87).all()  # 348 draws for four classes, the largest of 300 pictures
    assert not (large[0] & large[1]).any()
    assert set(large[:4].sum(axis=0)) == {1, 2}
    assert np.ptp(large.sum(axis=0)) <= 2


@pytest.mark.parametrize("order", ORDERS)
def test_every_draw_of_a_picture_in_an_epoch_is_a_copy_of_its_own(order):
    options = {"num_rows": len(LABELS), "order": order, "sampling": "class_balanced", "labels": LABELS}
    draws = [draw for batch in batches_from(**options) for draw in batch]
    assert len(draws) == len(set(draws)) == len(LABELS)
    times = Counter(draw.row for draw in draws)
    for draw in draws:
        assert draw.copy < times[draw.row]
    assert max(times.values()) == 87  # the class of one picture


def test_the_draws_of_a_sampling_are_mixed():
    options = {"num_rows": len(LABELS), "sampling": "class_balanced", "labels": LABELS}
    labels = [LABELS[draw.row - 100] for batch in batches_from(**options) for draw in batch]
    for part in np.split(np.array(labels), 4):
        assert min(np.bincount(part)[[0, 2, 3, 5]]) >= 10  # 21.75 of 87 on average


def test_a_sampler_that_cannot_work_is_refused():
    with pytest.raises(ValueError, match="needs the label"):
        batches_from(sampling="square_root")
    with pytest.raises(ValueError, match="rank 2 of 2"):
        batches_from(rank=2, num_ranks=2)


@pytest.fixture(scope="module")
def million():
    """Labels of 1.6 million pictures of 5,337 classes with a long tail."""
    shares = 1 / np.arange(1, 5338)
    return np.searchsorted(np.cumsum(shares / shares.sum()), np.random.default_rng(0).random(1_600_000)).clip(0, 5336)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_sampler_of_1600000_rows_starts_in_under_2_seconds_and_holds_little(order, sampling, million):
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
    assert seconds < 2
    assert held < 30e6  # bytes
    assert peak < 120e6


@pytest.mark.parametrize(("epoch", "side"), [(0, 64), (4, 64), (5, 96), (8, 96), (9, 128), (50, 128)])
def test_the_side_is_the_last_that_has_begun(epoch, side):
    assert side_at_epoch([(0, 64), (5, 96), (9, 128)], 380, epoch) == side


def test_before_the_first_pair_and_without_any_the_pictures_have_their_full_side():
    assert side_at_epoch([(3, 64)], 380, 2) == 380
    assert side_at_epoch([], 380, 7) == 380
