"""All programs refuse a wrong flag in the same words and with the same exit code, before they load torch."""

import importlib
import re
import sys

import pytest

from tests.make import ROOT, from_table, ran

TRAINING = ("prepare", "train", "evaluate", "export", "release")


@pytest.fixture
def ended(monkeypatch, capsys, handlers):
    """Runs the main function of a module; returns its exit code and what it wrote to standard error."""
    monkeypatch.setattr("serving.__main__.end_process", sys.exit)  # ends the process at once

    def run(module, *words):
        monkeypatch.setattr(sys, "argv", ["program", *words])
        with pytest.raises(SystemExit) as exit_:
            importlib.import_module(module).main()
        return exit_.value.code, capsys.readouterr().err

    return run


@from_table
def test_a_flag_out_of_range_is_one_line(words, flag, value, expected, ended):
    code, said = ended(*words.split(), flag, value)
    assert code == 1
    assert said.startswith(f"error (bad_input): {flag} is not valid (got {value}; {expected}")
    assert said.endswith("): see --help.\n")


@from_table
def test_an_unknown_flag_is_named(words, ended):
    code, said = ended(*words.split(), "--nonsense", "1")
    assert code == 2
    assert "--nonsense" in said


@from_table
def test_what_is_no_number_is_named(words, flag, ended):
    code, said = ended(*words.split(), flag, "many")
    assert code == 2
    assert "many" in said
    assert flag in said


@from_table
def test_a_list_is_given_once(words, flag, ended):
    code, said = ended(*words.split(), flag, "one", f"{flag}=two")
    assert code == 1
    assert said.startswith(f"error (bad_input): {flag} is given more than once (expected once")


LOADED = """
import sys
from contextlib import suppress
from importlib import import_module
for name, *words in (*((each, "--help") for each in {names}), ("train", "debug", "--workers", "-1")):
    sys.argv = [name, *words]
    with suppress(SystemExit):
        import_module(f"training.{{name}}").main()
print("torch" in sys.modules)
"""


def test_neither_help_nor_a_wrong_flag_loads_torch():
    command = [sys.executable, "-c", LOADED.format(names=TRAINING)]
    said = ran(*command, check=True).stdout
    assert said.count("usage: ") == len(TRAINING)
    assert said.endswith("False\n")


@pytest.mark.parametrize("program", ["prepare.py", "flora.py"])
def test_programs_run_where_the_packages_are_but_botanify_is_not_installed_as_in_the_training_image(program):
    hidden = (
        "import importlib.metadata as m, runpy, sys\n"
        "known = m.distribution\n"
        "def distribution(name):\n"
        "    if name == 'botanify': raise m.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "m.distribution = distribution\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = ran(sys.executable, "-c", hidden, ROOT / "training" / program, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_is_started_as_a_file_imports_from_the_project_once_it_is_found():
    texts = {path: path.read_text() for path in ROOT.glob("[bst]*/**/*.py")}
    heads = {path: text.partition("\nif not __package__:\n") for path, text in texts.items()}
    programs = {path: head for path, (head, found, _) in heads.items() if found}
    assert len(programs) == 18
    too_early = re.compile(r"^from (?:models|training|serving|benchmarks)\b", re.MULTILINE)
    assert [path for path, head in programs.items() if too_early.search(head)] == []
