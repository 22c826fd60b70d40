"""The scripts for a GPU machine, run with a stand-in for Python that notes what it is asked to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tyro

from benchmarks.train_speed import TrainSpeed
from training import benchmark, prepare, train
from training.evaluate import Evaluate
from training.export import Export

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "benchmarks" / "gpu").glob("*.sh"))
NUMBERED = [script.name for script in SCRIPTS if script.name[0].isdigit()]
# Notes its arguments, and leaves behind what the program would. In bash, which starts at once.
STAND_IN = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then exit 0; fi
printf '%s\\t' "$@" >> "{notes}"
echo >> "{notes}"
if [[ ${{FAILS:-}} == "${{1##*/}}" ]]; then exit "$CODE"; fi
while [[ $# -gt 1 ]]; do
    if [[ $1 == --out || $1 == --run ]]; then
        if [[ $2 == *.json ]]; then
            echo '[]' > "$2"
        else
            mkdir -p "$2"
            for name in optimizations.json batch_sizes.json ablation.json model.fp32.onnx log.jsonl best.pt; do
                echo '[]' > "$2/$name"
            done
        fi
    fi
    shift
done
"""


def run(script, folder, **variables):
    """Exit code, and what Python was asked to do."""
    python, notes = folder / "python", folder / "notes.txt"
    python.write_text(STAND_IN.format(notes=notes))
    python.chmod(0o755)
    notes.write_text("")
    (folder / "flowers").mkdir(exist_ok=True)
    (folder / "weights.pt").touch()
    names = {"PYTHON": "python", "WORK": "work", "OUT": "out", "FLOWERS": "flowers", "WEIGHTS": "weights.pt"}
    found = os.environ | {name: str(folder / place) for name, place in names.items()} | variables
    done = subprocess.run(["bash", ROOT / "benchmarks" / "gpu" / script], env=found, timeout=60, check=False)
    return done.returncode, [line.split("\t")[:-1] for line in notes.read_text().splitlines()]


def understood(program, *arguments):
    """Parses a command line as the program itself does."""
    match Path(program).name:
        case "prepare.py":
            return tyro.cli(prepare.Command, args=arguments)
        case "train_speed.py":
            return tyro.cli(TrainSpeed, args=arguments)
        case "train.py":
            return train.parse(list(arguments))
        case "export.py":
            return tyro.cli(Export, args=arguments)
        case "evaluate.py":
            return tyro.cli(Evaluate, args=arguments)
        case "benchmark.py":
            study = benchmark.parse(list(arguments))
            train.parse(["b4_5337", *study.flags])
            return study
    raise AssertionError(f"no program {program}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound_bash(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) == (script.name != "bootstrap.sh")


@pytest.mark.parametrize("tiny", ["0", "1"])
@pytest.mark.parametrize("script", NUMBERED)
def test_every_command_is_understood_and_done_once(script, tiny, tmp_path):
    code, asked = run(script, tmp_path, TINY=tiny)
    assert code == 0
    assert asked
    for program, *arguments in asked:
        assert (ROOT / program).is_file() or Path(program).is_file()
        understood(program, *arguments)
    again, asked = run(script, tmp_path, TINY=tiny)
    assert (again, asked) == (0, [])


@pytest.mark.parametrize("code", [75, 124])
def test_a_script_pauses_with_its_programs_and_goes_on_there(code, tmp_path):
    paused, asked = run("1_speed.sh", tmp_path, FAILS="benchmark.py", CODE=str(code))
    assert paused == 75
    ended, rest = run("1_speed.sh", tmp_path)
    assert ended == 0
    assert rest == asked[-1:]


def test_a_failure_ends_a_script_with_its_own_code(tmp_path):
    assert run("2_scratch.sh", tmp_path, FAILS="train.py", CODE="1")[0] == 1


def test_a_script_whose_time_is_over_pauses_before_it_begins(tmp_path):
    assert run("4_batch_sizes.sh", tmp_path, LIMIT_S="0") == (75, [])


def test_the_ablation_asks_for_its_checkpoint(tmp_path):
    code, asked = run("3_ablation.sh", tmp_path, WEIGHTS=str(tmp_path / "missing.pt"))
    assert (code, asked) == (1, [])


def test_the_wheels_are_those_of_the_lock(tmp_path):
    shutil.copytree(ROOT / "benchmarks" / "gpu", tmp_path / "benchmarks" / "gpu")
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    code, asked = run(tmp_path / "benchmarks" / "gpu" / "wheels.sh", tmp_path)
    assert code == 0
    pins = [argument for argument in asked[0] if "==" in argument]
    assert {pin.partition("==")[0] for pin in pins} >= {"msgspec", "tyro", "typeguard", "simplejpeg", "imagehash"}
    assert all(f"\n{pin} " in (ROOT / "requirements.lock").read_text() for pin in pins)
