"""A program that cannot start says so in one line; one whose output nobody reads any more ends without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("prepare", "train", "evaluate", "export", "release")
QUIET = "import os, sys\nfrom models.program import quiet_when_output_closes\nwith quiet_when_output_closes():\n    "


def run(*arguments, **options):
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)


def run_for_a_reader_that_has_ended(*arguments):
    """Runs a program whose output goes to a pipe without a reader."""
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as reader:
        reader.wait()
        return run(*arguments, stdout=reader.stdin)


@pytest.mark.parametrize(
    ("program", "remedy"),
    [*((f"training/{name}.py", "make train-env") for name in PROGRAMS), ("serving/__main__.py", "make serve")],
)
def test_a_program_without_its_packages_names_one_and_how_to_install_them(program, remedy):
    ended = run("-S", program, "--help")  # -S: without the packages of the environment
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error (missing_package): {sys.executable} has no package ")
    assert remedy in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("statement", ["import training.absent", "import training.absent.part", "1 / 0"])
def test_a_mistake_of_the_project_keeps_its_traceback(statement):
    explained = "from models.program import explain_missing_packages; explain_missing_packages('install it')"
    ended = run("-c", f"{explained}\n{statement}")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "missing_package" not in ended.stderr


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("ending", ["", "; sys.exit(0)"])
def test_a_closed_output_ends_the_program_without_a_word(size, ending):
    ended = run_for_a_reader_that_has_ended("-c", f"{QUIET}print('x' * {size}){ending}")
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_closed_pipe_of_another_kind_is_an_error():
    ended = run("-c", f"{QUIET}raise BrokenPipeError('a decoder ended')", stdout=subprocess.DEVNULL)
    assert ended.returncode == 1
    assert "a decoder ended" in ended.stderr


@pytest.mark.parametrize(
    "program",
    [
        "serving/access/keys.py",
        pytest.param("serving/__main__.py", marks=pytest.mark.slow),
        *(pytest.param(f"training/{name}.py", marks=pytest.mark.slow) for name in PROGRAMS),
    ],
)
def test_help_for_a_reader_that_has_ended_prints_nothing_else(program):
    ended = run_for_a_reader_that_has_ended(program, "--help")
    assert (ended.returncode, ended.stderr) == (141, "")
