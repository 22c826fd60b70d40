import subprocess
import sys

import pytest

from models.errors import DataError
from tests.training.small import require_one_line
from training.program import run_program


def raises(error):
    def program():
        raise error

    return program


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("no such folder", value="x", remedy="name another"), "bad_data"),
        (PermissionError(13, "Permission denied", "/x"), "file_system"),
    ],
)
def test_an_expected_error_is_one_line_and_exit_code_1(error, code, capsys):
    with pytest.raises(SystemExit) as ended:
        run_program(raises(error))
    assert ended.value.code == 1
    printed = capsys.readouterr()
    require_one_line(printed.err, code)
    assert printed.out == ""


def test_an_unexpected_error_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_program(raises(ZeroDivisionError()))


def test_a_program_ends_without_a_word_when_nobody_reads_its_output():
    program = "from training.program import run_program; run_program(lambda: print('help' * 9999))"
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as reader:
        reader.wait()
        ended = subprocess.run(
            [sys.executable, "-c", program], check=False, stdout=reader.stdin, stderr=subprocess.PIPE
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_an_interrupted_program_ends_as_the_shell_expects(capsys):
    with pytest.raises(SystemExit) as ended:
        run_program(raises(KeyboardInterrupt()))
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
