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
def test_a_mistake_of_the_user_is_one_line_and_exit_code_1(error, code, capsys):
    with pytest.raises(SystemExit) as ended:
        run_program(raises(error))
    assert ended.value.code == 1
    told = capsys.readouterr()
    require_one_line(told.err, code)
    assert told.out == ""


def test_a_mistake_of_ours_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_program(raises(ZeroDivisionError()))


def test_an_interrupted_program_ends_as_the_shell_expects(capsys):
    with pytest.raises(SystemExit) as ended:
        run_program(raises(KeyboardInterrupt()))
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
