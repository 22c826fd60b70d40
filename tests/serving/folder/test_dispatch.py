"""Which machine has which part: every part is done once, whatever machines do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InputError
from serving.folder.cluster import MAX_LOSSES, Dispatch
from serving.folder.photographs import Photograph
from serving.folder.plan import Part
from serving.folder.plants import Plant


def parts(number):
    return [Part(index, (Plant("a", (Photograph(f"{index}.jpg", 1, "1"),)),)) for index in range(number)]


@given(st.integers(0, 12), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans())))
def test_every_part_is_done_once(num_parts, events):
    dispatch, running, done = Dispatch(parts(num_parts)), {name: [] for name in "abcd"}, []

    def end(machine, at, survives):
        part = running[machine].pop(at)
        if not survives:
            dispatch.lose(part, machine)
        elif dispatch.finish(part):
            done.append(part.number)

    for machine, at, survives in events:
        if at < len(running[machine]):
            end(machine, at, survives)
        elif (part := dispatch.give(machine)) is not None:
            assert part not in running[machine]
            running[machine].append(part)
    while not dispatch.is_done:  # the machines a to c are frozen; the last one is enough, once Ray has given them up
        while (part := dispatch.give("d")) is None:
            machine = next(name for name in "abc" if running[name])
            end(machine, 0, survives=False)
        running["d"].append(part)
        end("d", 0, survives=True)
    assert sorted(done) == list(range(num_parts))


def test_a_machine_with_a_free_place_gets_what_a_slow_one_has_had_for_the_longest_time():
    dispatch = Dispatch(parts(3))
    given = [dispatch.give(machine).number for machine in ("slow", "slow", "quick")]
    assert given == [0, 1, 2]
    assert dispatch.give("slow").number == 2
    assert [dispatch.give("quick").number for _ in range(2)] == [0, 1]
    assert dispatch.give("quick") is None
    assert dispatch.give("third") is None


def test_a_lost_part_is_given_before_those_that_nobody_had():
    dispatch = Dispatch(parts(3))
    dispatch.lose(dispatch.give("dead"), "dead")
    assert [dispatch.give("alive").number for _ in range(3)] == [0, 1, 2]


def test_a_part_that_ends_every_process_is_an_error():
    dispatch = Dispatch(parts(1))
    for _ in range(MAX_LOSSES):
        dispatch.lose(dispatch.give("a"), "a")
    with pytest.raises(InputError, match=r"begins with 0\.jpg"):
        dispatch.lose(dispatch.give("a"), "a")
