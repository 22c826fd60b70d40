"""The scripts for a GPU machine give each program flags that it knows; a recorder stands in for Python."""

import os
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import sweep as sweeps
from tests.make import ROOT, from_table, ran, require_accepted
from training.train import parse

NUMBERED = sorted(script.name for script in (ROOT / "benchmarks" / "gpu").glob("[0-9]*.sh"))
RECORDER = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then
    if [[ -e $3/manifest.parquet ]]; then exec "$REAL_PYTHON" "$@"; fi
    if [[ -n $5 ]]; then echo 30; fi  # epochs
    exit 0
fi
printf '%s\\t' "$@" >> "$0.txt"
echo >> "$0.txt"
mkdir -p "${0%/*}/work"/{plants-bundle,scratch-files/{bundle,evaluation}}
exit "${CODE:-0}"
"""
# Runs pytest as on a machine that lacks the packages of the service, and the plugins that pyproject.toml names.
COLLECT_ONLY = """import sys
sys.modules.update(dict.fromkeys(("anyio", "litestar", "pytest_cov", "structlog", "uvicorn", "xdist")))
import pytest
sys.exit(pytest.main([*sys.argv[1:], "--collect-only"]))"""


def run(script, folder, *arguments, **variables):
    """Exit code, the arguments of each start of Python, and the script's stderr."""
    python = folder / "python"
    python.write_text(RECORDER)
    python.chmod(0o755)
    notes = folder / "python.txt"
    notes.write_text("")
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work" / "weights.pt").touch()
    places = {
        "PYTHON": python,
        "REAL_PYTHON": sys.executable,
        "WORK": folder / "work",
        **dict.fromkeys(("DATA", "NEGATIVES", "UNKNOWN", "IMAGENET"), folder),
    }
    command = ["bash", ROOT / "benchmarks" / "gpu" / script, *arguments]
    environment = os.environ | {name: str(place) for name, place in places.items()} | variables
    done = ran(*command, env=environment, timeout=300)
    return done.returncode, [line.split("\t")[:-1] for line in notes.read_text().splitlines()], done.stderr


def understood(tiny, program, *arguments):
    """Parses a command line as the program itself does."""
    if arguments[0] == "torch.distributed.run":
        understood(tiny, *arguments[arguments.index("--") + 1 :])
    elif program == "-m":
        assert arguments[0] == "pytest"
        assert "tests/training/engine/test_trainer_on_gpu.py" in arguments
        if tiny == "1":
            apart = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            done = ran(sys.executable, "-c", COLLECT_ONLY, *arguments[1:], env=apart)
            assert done.returncode == 0, done.stdout
    elif program.endswith("/train.py"):
        assert parse(list(arguments)).recipe.hardware.device != "cuda" or tiny == "0"
    elif program.endswith("/sweep.py"):
        sweep = sweeps.parse(list(arguments))
        found, _ = sweeps.read_sweep(sweep.sweep)
        for words in sweeps.commands_of(found, "cuda", sweep.only).values():
            parse([*words, *sweep.flags])
    else:
        assert (ROOT / program).is_file()
        require_accepted(program, *arguments)


@pytest.mark.parametrize("tiny", ["0", "1"])
@pytest.mark.parametrize("script", NUMBERED)
def test_every_command_is_parsed_and_run_once(script, tiny, tmp_path):
    code, asked, _ = run(script, tmp_path, TINY=tiny)
    assert code == 0
    assert asked
    for words in asked:
        understood(tiny, *words)
    assert run(script, tmp_path, TINY=tiny)[:2] == (0, [])


@pytest.mark.parametrize("code", [1, 75, 137])
def test_a_command_that_fails_or_pauses_ends_the_script_with_its_code(code, tmp_path):
    found, asked, _ = run("4_speed.sh", tmp_path, CODE=str(code))
    assert (found, len(asked)) == (code, 1)


def test_a_paused_script_brings_its_results_and_what_another_machine_needs_to_go_on(tmp_path):
    study = tmp_path / "work" / "optimizations"
    study.mkdir(parents=True)
    for name in ("optimizations.json", "machine.json"):
        (study / name).touch()
    assert run("4_speed.sh", tmp_path, CODE="75")[0] == 75
    out = tmp_path / "work" / "out"
    assert {path.name for path in out.iterdir()} == {"optimizations.json", "state.tar.gz"}
    run("4_speed.sh", tmp_path, WORK=str(tmp_path / "other"), STATE=str(out / "state.tar.gz"))
    assert (tmp_path / "other" / "optimizations" / "machine.json").exists()


def test_tests_that_could_not_begin_are_failed_tests(tmp_path):
    run("0_first.sh", tmp_path, TINY="1", CODE="4")
    assert (tmp_path / "work" / "tests" / "failed").exists()


def test_training_goes_on_without_the_pictures_whose_shard_is_not_there(tmp_path):
    columns = {"shard": ["train-0.tar", "train-1.tar", "test-0.tar", ""], "split": ["train", "train", "test", "train"]}
    pq.write_table(pa.table(columns, metadata={"packed_from": "all"}), tmp_path / "manifest.parquet")
    for name in ("train-1.tar", "taxa.json"):
        (tmp_path / name).touch()
    code, asked, _ = run("1_plants.sh", tmp_path)
    fewer = tmp_path / "work" / "plants-data"
    trained = parse(asked[0][1:]).recipe.data
    assert (code, trained.data, trained.shards) == (0, fewer, str(tmp_path))
    kept = pq.read_table(fewer / "manifest.parquet")
    assert kept["shard"].to_pylist() == ["train-1.tar", "test-0.tar", ""]
    assert kept.schema.metadata[b"packed_from"] == b"all"


@from_table
def test_what_a_script_lacks_is_told_before_its_first_command(script, argument, variables, code, told, tmp_path):
    found, asked, said = run(script, tmp_path, argument, **variables)
    assert (found, asked) == (code, [])
    assert said.startswith(told)


def test_a_copy_without_git_is_asked_for_its_commit_which_results_then_name(tmp_path):
    folder = tmp_path / "copy" / "benchmarks" / "gpu"
    shutil.copytree(ROOT / "benchmarks" / "gpu", folder)
    (tmp_path / ".git").mkdir()  # a repository around the copy is not its own
    told = "error: this copy has no .git, and each result names its commit: set GIT_COMMIT to it\n"
    assert run(folder / "2_full_width.sh", tmp_path, GIT_COMMIT="") == (1, [], told)
    assert run(folder / "2_full_width.sh", tmp_path, GIT_COMMIT="0" * 40)[0] == 0


@pytest.mark.parametrize(
    ("argument", "needed"),
    [
        ("", {"msgspec", "tyro", "typeguard", "simplejpeg", "pytest", "hypothesis"}),
        ("service", {"msgspec", "litestar", "httptools", "structlog"}),
    ],
)
def test_the_wheels_are_those_of_the_lock(argument, needed, tmp_path):
    _, asked, _ = run("wheels.sh", tmp_path, argument)
    pins = [word for word in asked[0] if "==" in word]
    assert {pin.partition("==")[0] for pin in pins} >= needed
    assert all(f"\n{pin} " in (ROOT / "requirements.lock").read_text() for pin in pins)
