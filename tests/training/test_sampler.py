import numpy as np
import pytest

from training.sampler import Draw, EpochBatches, batches_per_epoch, epoch_order, side_at_epoch


@pytest.mark.parametrize("num_pictures", [1, 2, 17, 1000])
def test_every_epoch_shows_every_picture_once(num_pictures):
    for epoch in range(3):
        assert sorted(epoch_order(5, epoch, num_pictures)) == list(range(num_pictures))


def test_the_order_follows_from_seed_and_epoch_alone():
    first = epoch_order(5, 2, 100)
    np.random.default_rng(0).random(7)
    assert (first == epoch_order(5, 2, 100)).all()
    assert (first != epoch_order(5, 3, 100)).any()
    assert (first != epoch_order(6, 2, 100)).any()


def test_the_order_is_the_same_on_every_machine_and_with_every_numpy():
    assert epoch_order(17, 4, 8).tolist() == [5, 2, 7, 3, 6, 0, 1, 4]


def batches_from(first_batch, num_rows=23):
    batches = EpochBatches(np.arange(100, 100 + num_rows), batch_size=4, seed=3)
    batches.epoch, batches.first_batch, batches.side_px = 2, first_batch, 64
    found = list(batches)
    assert len(batches) == len(found)
    return found


@pytest.mark.parametrize("first_batch", [0, 1, 4, 5])
def test_an_epoch_taken_up_again_gives_exactly_what_was_left(first_batch):
    assert batches_from(first_batch) == batches_from(0)[first_batch:]


def test_draws_say_epoch_row_and_side():
    draws = [draw for batch in batches_from(0) for draw in batch]
    assert all(draw == Draw(2, draw.row, 64) for draw in draws)
    assert len({draw.row for draw in draws}) == 20
    assert {draw.row for draw in draws} <= set(range(100, 123))


def test_only_full_batches_are_given_unless_there_is_no_full_one():
    assert (batches_per_epoch(23, 4), batches_per_epoch(24, 4), batches_per_epoch(3, 4)) == (5, 6, 1)
    assert [len(batch) for batch in batches_from(0)] == [4] * 5
    assert [len(batch) for batch in batches_from(0, num_rows=3)] == [3]


@pytest.mark.parametrize(("epoch", "side"), [(0, 64), (4, 64), (5, 96), (8, 96), (9, 128), (50, 128)])
def test_the_side_is_the_last_that_has_begun(epoch, side):
    assert side_at_epoch([(0, 64), (5, 96), (9, 128)], 380, epoch) == side


def test_before_the_first_pair_and_without_any_the_pictures_have_their_full_side():
    assert side_at_epoch([(3, 64)], 380, 2) == 380
    assert side_at_epoch([], 380, 7) == 380
