"""What tests in all folders need."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ran(*command, cwd=ROOT, check=False, **options):
    """A process that has ended, with what it wrote."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, check=check, capture_output=True, text=True, **options)
