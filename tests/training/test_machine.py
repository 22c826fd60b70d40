import subprocess
from unittest.mock import Mock

from training.machine import current_commit


def test_what_git_says_counts_more_than_what_a_copy_without_git_was_told(monkeypatch):
    monkeypatch.setenv("GIT_COMMIT", "abc")
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=FileNotFoundError("git")))
    assert current_commit() == "abc"
    monkeypatch.setattr(subprocess, "run", Mock(return_value=subprocess.CompletedProcess([], 0, stdout="def+\n")))
    assert current_commit() == "def+"
