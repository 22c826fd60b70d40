"""A program that cannot start says so in one line; one whose output nobody reads any more ends without a word."""

import subprocess
import sys

import pytest

from models.errors import DataError, InputError
from models.program import clear_errors
from tests.make import ROOT, from_table

QUIET = "import sys\nfrom models.program import clear_errors\nwith clear_errors():\n    "
TRAINING = ("prepare", "train", "evaluate", "export", "release")


def run(*arguments, **options):
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)


def run_for_a_reader_that_has_ended(*arguments):
    """Runs a program whose output goes to a pipe without a reader."""
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as reader:
        reader.wait()
        return run(*arguments, stdout=reader.stdin)


@from_table
def test_a_program_without_its_packages_names_one_and_how_to_install_them(program, remedy):
    ended = run("-S", *program, ".", "--out", "x")  # -S: without the packages of the environment
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error (missing_package): {sys.executable} has no package ")
    assert remedy in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("statement", ["import training.absent", "import training.absent.part", "1 / 0"])
def test_a_mistake_of_the_project_keeps_its_traceback(statement):
    ended = run("-c", f"import models.program\nmodels.program.explain_missing_packages('x')\n{QUIET}{statement}")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "missing_package" not in ended.stderr


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("ending", ["", "; sys.exit(0)"])
def test_a_closed_output_ends_the_program_without_a_word(size, ending):
    ended = run_for_a_reader_that_has_ended("-c", f"{QUIET}print('x' * {size}){ending}")
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    "program",
    [
        ["-m", "serving.access.keys"],
        pytest.param(["-m", "serving"], marks=pytest.mark.slow),
        *(pytest.param([f"training/{name}.py"], marks=pytest.mark.slow) for name in TRAINING),
    ],
)
def test_help_for_a_reader_that_has_ended_prints_nothing_else(program):
    ended = run_for_a_reader_that_has_ended(*program, "--help")
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("no folder", value="x", remedy="name it"), 1, "error (bad_data): no folder (got x): name it."),
        (InputError("a server said \x1b[2J"), 1, "error (bad_input): a server said \\u001b[2J."),
        (PermissionError(13, "Denied", "s3://me:secret@a"), 1, "error (file_system): [Errno 13] Denied: 's3://a'"),
        (BrokenPipeError("a decoder ended"), 1, "error (file_system): a decoder ended"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_an_expected_error_is_one_line_and_an_exit_code(error, code, line, capfd):
    with pytest.raises(SystemExit) as ended, clear_errors():
        raise error
    assert ended.value.code == code
    assert capfd.readouterr() == ("", f"{line}\n")


def test_what_an_error_left_open_is_closed_before_the_interpreter_ends():
    closed = []

    def bar(name):
        try:
            yield from range(2)
        finally:
            closed.append(name)

    def fails(name):
        next(bar_of_this_call := bar(name))
        raise OSError(f"{name} with {bar_of_this_call}")

    def wraps():
        next(bar_of_this_call := bar("outer"))
        try:
            fails("inner")
        except OSError as error:
            raise DataError(f"wrapped beside {bar_of_this_call}") from error

    with pytest.raises(SystemExit) as kept, clear_errors():
        wraps()
    assert sorted(closed) == ["inner", "outer"]
    assert kept.value.__context__ is not None
