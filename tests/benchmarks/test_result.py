import json
import sys

import msgspec

from benchmarks.result import ROOT, read_result, write_result


class Speed(msgspec.Struct):
    per_s: float


def test_a_result_names_its_command_without_the_folders_of_the_machine(tmp_path, monkeypatch):
    program = str(ROOT / "benchmarks" / "loader.py")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            program,
            "--small",
            "/data/of/mine/small",
            "--camera=~/camera/",
            "--out",
            "/out",
            "--side",
            "a b",
            "--run",
            "runs/x",
        ],
    )
    write_result(Speed(2.0), "2 a second", tmp_path / "speed.json")
    assert json.loads((tmp_path / "speed.json").read_text()) == {
        "per_s": 2.0,
        "command": "python benchmarks/loader.py --small small --camera=camera --out out --side 'a b' --run runs/x",
        "markdown": "2 a second",
    }
    assert read_result(tmp_path / "speed.json", Speed) == Speed(2.0)
