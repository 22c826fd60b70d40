"""What a long run has measured survives its interruption."""

import msgspec
import pytest

from benchmarks.serving.turns import Turns
from models.errors import DataError


class Figure(msgspec.Struct, frozen=True):
    value: float
    words: dict[str, int]


def counting():
    calls = []

    def measure():
        calls.append(1)
        return Figure(len(calls), {"200": 3})

    return calls, measure


def test_a_turn_is_measured_once(tmp_path):
    calls, measure = counting()
    for _ in range(2):
        turns = Turns(tmp_path / "new" / "result.json", b"{}")
        assert turns.take("round 0", Figure, measure) == Figure(1, {"200": 3})
        assert turns.take("round 0", Figure, measure) == Figure(1, {"200": 3})
    assert turns.take("round 1", Figure, measure) == Figure(2, {"200": 3})
    assert len(calls) == 2


def test_turns_are_removed_once_the_result_is_written(tmp_path):
    calls, measure = counting()
    turns = Turns(tmp_path / "result.json", b"{}")
    turns.take("round 0", Figure, measure)
    turns.forget()
    assert list(tmp_path.iterdir()) == []
    Turns(tmp_path / "result.json", b"{}").take("round 0", Figure, measure)
    assert len(calls) == 2


def test_a_partly_written_turn_is_measured_again(tmp_path):
    calls, measure = counting()
    turns = Turns(tmp_path / "result.json", b"{}")
    turns.take("round 0", Figure, measure)
    turns.take("round 1", Figure, measure)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-5])
    turns = Turns(tmp_path / "result.json", b"{}")
    assert turns.take("round 0", Figure, measure).value == 1
    assert turns.take("round 1", Figure, measure).value == 3
    assert Turns(tmp_path / "result.json", b"{}").take("round 1", Figure, measure).value == 3
    assert len(calls) == 3


def test_turns_of_another_run_are_refused(tmp_path):
    _, measure = counting()
    Turns(tmp_path / "result.json", b'{"rounds":5}').take("round 0", Figure, measure)
    with pytest.raises(DataError, match="another commit"):
        Turns(tmp_path / "result.json", b'{"rounds":6}')


def test_without_a_result_file_turns_are_not_stored():
    _, measure = counting()
    turns = Turns(None, b"{}")
    assert turns.take("round 0", list[int], lambda: [1, 2]) == [1, 2]
    assert turns.take("round 1", Figure, measure).value == 1
    turns.forget()
