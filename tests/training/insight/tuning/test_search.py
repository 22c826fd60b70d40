import numpy as np
import pytest

from tests.training.insight.tuning.stand_in import Machine
from training.insight.tuning.search import BatchSearch, NothingRan
from training.insight.tuning.setting import MAX_MEMORY_SHARE


def search(machine, largest=100_000):
    found = BatchSearch(machine, largest)
    return found.run().setting.batch_size, [wanted.batch_size for wanted in machine.asked]


def machines():
    """Two hundred random machines with noisy speeds and random failures."""
    for seed in range(200):
        draws = np.random.default_rng(seed)
        failing = {
            int(size): str(draws.choice(["crashed", "too_slow", "does_not_fit"]))
            for size in 2 ** draws.integers(5, 12, 2)
        }
        yield Machine(
            half=float(10 ** draws.uniform(-1, 3)),
            gb_base=0.5,
            gb_each=0.02,
            card_gb=float(draws.uniform(1, 40)),
            outcomes=failing,
            noise=draws,
        )


def test_the_returned_size_was_measured():
    for machine in machines():
        chosen, asked = search(machine)
        assert chosen in asked
        assert machine.outcomes.get(chosen, "ran") == "ran"


def test_nothing_above_ninety_percent_of_the_memory_is_returned():
    shares = [machine.memory_share(search(machine)[0]) for machine in machines()]
    assert max(shares) <= MAX_MEMORY_SHARE
    assert max(shares) > 0.8  # and the memory is used where it pays


def test_no_size_is_run_twice_and_all_are_powers_of_two_or_multiples_of_eight():
    for machine in machines():
        _, asked = search(machine)
        assert len(asked) == len(set(asked))
        assert all(size % 8 == 0 or size in {1, 2, 4} for size in asked)


def test_the_smallest_batch_within_three_percent_of_the_fastest_is_chosen():
    machine = Machine(half=4.0)
    chosen, asked = search(machine)
    fastest = max(map(machine.speed, asked))
    assert machine.speed(chosen) >= 0.97 * fastest
    assert all(machine.speed(size) < 0.97 * fastest for size in asked if size < chosen)
    assert chosen < max(asked)


@pytest.mark.parametrize("limit", [*range(1, 64), 100, 250, 777, 1000])
def test_the_largest_size_that_fits_is_found_if_larger_ones_fail(limit):
    class Rising(Machine):
        def speed(self, size):
            return size

    machine = Rising(gb_base=0.0, gb_each=1.0, card_gb=(limit + 0.5) / MAX_MEMORY_SHARE)
    chosen, asked = search(machine)
    allowed = [size for size in range(1, limit + 1) if size in {1, 2, 4} or size % 8 == 0]
    assert chosen <= limit
    # Between powers of two it looks at quarters, and no closer than multiples of 8.
    assert chosen > 0.75 * limit or chosen == max(allowed)
    assert len(asked) < 20


def test_a_card_that_is_too_small_for_the_first_size_gets_a_smaller_one():
    assert search(Machine(gb_base=0.0, gb_each=1.0, card_gb=3.0))[0] == 2


def test_a_crash_at_one_size_is_skipped():
    chosen, asked = search(Machine(half=20.0, outcomes={32: "crashed"}))
    assert 32 in asked
    assert chosen > 32


def test_growth_ends_after_two_crashes():
    _, asked = search(Machine(half=1000.0, outcomes=dict.fromkeys(range(64, 10_000), "crashed")))
    assert max(asked) == 128


def test_a_recipe_that_refuses_small_batches_gets_a_large_one():
    refused = {size: "crashed" for size in range(1000) if size % 32}
    assert search(Machine(half=100.0, outcomes=refused), largest=256)[0] == 256


def test_growth_ends_at_a_size_that_is_too_slow():
    chosen, asked = search(Machine(half=1000.0, outcomes=dict.fromkeys(range(64, 10_000), "too_slow")))
    assert max(asked) == 64
    assert chosen == 56


def test_growth_ends_when_speed_no_longer_rises():
    _, asked = search(Machine(half=0.01))
    assert max(asked) <= 32


def test_a_machine_that_is_fastest_with_single_pictures_gets_a_small_batch():
    class Falling(Machine):
        def speed(self, size):
            return 100 - size

    assert search(Falling())[0] <= 4


def test_no_batch_is_larger_than_the_data():
    chosen, asked = search(Machine(half=1000.0), largest=50)
    assert max(asked) <= 50
    assert chosen == 48


@pytest.mark.parametrize("largest", [56, 64])
def test_the_largest_size_is_tried_where_larger_is_faster(largest):
    chosen, asked = search(Machine(half=1000.0), largest)
    assert chosen == max(asked) == largest


def test_a_size_that_crashes_does_not_end_the_search_for_smaller_ones():
    machine = Machine(gb_base=0.0, gb_each=1.0, card_gb=3.0, outcomes={4: "crashed"})
    assert search(machine)[0] == 2


def test_the_error_names_the_reason_if_nothing_runs():
    with pytest.raises(NothingRan, match="planted"):
        search(Machine(outcomes=dict.fromkeys(range(10_000), "crashed")))
