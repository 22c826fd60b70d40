"""The programs of training read their flags before they load what takes seconds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELP = """
import importlib, sys
from contextlib import suppress
for name in ("prepare", "train", "evaluate", "export", "release", "benchmark"):
    sys.argv = [name, "--help"]
    with suppress(SystemExit):
        importlib.import_module(f"training.{name}").main()
    if "torch" in sys.modules:
        sys.exit(f"{name} --help loads torch")
"""


def test_help_does_not_load_torch():
    ended = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("usage: ") == 6
