import json
import sys

import msgspec
import pytest

from benchmarks.result import ROOT, in_turns, read_result, write_result


class Speed(msgspec.Struct):
    per_s: float


def test_a_result_names_its_command_without_the_folders_of_the_machine(tmp_path, monkeypatch):
    program = str(ROOT / "benchmarks" / "loader.py")
    words = [
        "--small",
        "/data/of/mine/small",
        "--camera=~/camera/",
        "--out",
        "/out",
        "--side",
        "a b",
        "--run",
        "runs/x",
    ]
    monkeypatch.setattr(sys, "argv", [program, *words])
    write_result(Speed(2.0), "2 a second", tmp_path / "speed.json")
    assert json.loads((tmp_path / "speed.json").read_text()) == {
        "per_s": 2.0,
        "command": "python benchmarks/loader.py --small small --camera=camera --out out --side 'a b' --run runs/x",
        "markdown": "2 a second",
    }
    assert read_result(tmp_path / "speed.json", Speed) == Speed(2.0)


@pytest.mark.parametrize("number", [2, 3, 4, 8])
def test_the_order_of_turns_changes_from_round_to_round(number):
    turns = [name for _, name in in_turns(range(number), 6)]
    before = {name: {turns[at - 1] for at in range(1, len(turns)) if turns[at] == name} for name in range(number)}
    assert min(len(followed) for followed in before.values()) > 1
    assert turns == [name for _, name in in_turns(range(number), 6)]
    assert sorted(in_turns("ab", 2)) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
