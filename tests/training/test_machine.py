import subprocess

from training.machine import current_commit


def test_a_copy_without_git_has_the_commit_that_it_was_told(monkeypatch):
    def no_git(*_arguments, **_options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    monkeypatch.setenv("GIT_COMMIT", "abc")
    assert current_commit() == "abc"


def test_what_git_says_counts_more_than_what_was_told(monkeypatch):
    said = subprocess.CompletedProcess([], 0, stdout="abc+\n")
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_options: said)
    monkeypatch.setenv("GIT_COMMIT", "of another copy")
    assert current_commit() == "abc+"
