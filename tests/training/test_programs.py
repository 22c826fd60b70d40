"""The programs of training read their flags before they load what takes seconds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELP = """
import importlib, sys
from contextlib import suppress
for name in ("prepare", "train", "evaluate", "export", "release"):
    sys.argv = [name, "--help"]
    with suppress(SystemExit):
        importlib.import_module(f"training.{name}").main()
    if "torch" in sys.modules:
        sys.exit(f"{name} --help loads torch")
"""
WRONG_FLAG = """
import sys
from contextlib import suppress
from training.train import main
sys.argv = ["train.py", "debug", "--workers", "-1"]
with suppress(SystemExit):
    main()
assert "torch" not in sys.modules
"""


def test_help_does_not_load_torch():
    ended = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("usage: ") == 5


def test_a_wrong_flag_is_answered_without_torch():
    ended = subprocess.run([sys.executable, "-c", WRONG_FLAG], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "error (bad_recipe): the flag is out of range (got --workers -1; expected int >= 0).\n"
