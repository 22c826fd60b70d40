"""The scripts for a GPU machine give each program flags that it knows; a recorder stands in for Python."""

import os

import pytest

from tests.make import ROOT, ran, require_accepted
from training.train import parse

RECORDER = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then
    if [[ -n $5 ]]; then echo 30; fi  # epochs
    exit 0
fi
printf '%s\\t' "$@" >> "$0.txt"
echo >> "$0.txt"
exit "${CODE:-0}"
"""


def run(script, folder, **variables):
    """Exit code, the arguments of each start of Python, and the script's stderr."""
    python, notes = folder / "python", folder / "python.txt"
    python.write_text(RECORDER)
    python.chmod(0o755)
    notes.write_text("")
    places = {"PYTHON": python, "WORK": folder, **dict.fromkeys(("DATA", "NEGATIVES", "UNKNOWN", "IMAGENET"), folder)}
    environment = os.environ | {name: str(place) for name, place in places.items()} | variables
    done = ran("bash", ROOT / "benchmarks" / "gpu" / script, env=environment, timeout=300)
    return done.returncode, [line.split("\t")[:-1] for line in notes.read_text().splitlines()], done.stderr


def understood(program, *arguments):
    """Parses a command line as the program itself does."""
    if arguments[0] == "torch.distributed.run":
        understood(*arguments[arguments.index("--") + 1 :])
    elif program == "-m":
        assert "tests/training/engine/test_trainer_on_gpu.py" in arguments
    elif program.endswith("/train.py"):
        parse(list(arguments))
    else:
        require_accepted(program, *arguments)


@pytest.mark.parametrize("tiny", ["0", "1"])
@pytest.mark.parametrize("script", ["0_first.sh", "1_plants.sh"])
def test_every_command_is_parsed_and_run_once(script, tiny, tmp_path):
    code, asked, _ = run(script, tmp_path, TINY=tiny)
    assert code == 0
    assert len(asked) >= 3
    for words in asked:
        understood(*words)
    assert run(script, tmp_path, TINY=tiny)[:2] == (0, [])


@pytest.mark.parametrize(
    ("variables", "code", "told", "commands"),
    [
        ({"CODE": "75"}, 75, "paused at plants-probe", 1),
        ({"CODE": "137"}, 137, "", 1),
        ({"DATA": "nowhere"}, 1, "error: nowhere is not there: the head of this script", 0),
    ],
)
def test_a_command_that_fails_or_pauses_ends_the_script_with_its_code(variables, code, told, commands, tmp_path):
    found, asked, said = run("1_plants.sh", tmp_path, **variables)
    assert (found, len(asked)) == (code, commands)
    assert said.startswith(told)


def test_the_wheels_are_those_of_the_lock(tmp_path):
    _, (words,), _ = run("wheels.sh", tmp_path)
    pins = [word for word in words if "==" in word]
    assert len(pins) == 15
    assert all(f"\n{pin} " in (ROOT / "requirements.lock").read_text() for pin in pins)
