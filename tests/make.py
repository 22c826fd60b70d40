"""What tests in all folders need."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = Path(os.environ.get("BOTANIFY_PHOTOS", ROOT.parent / "shared" / "data"))
_WITHOUT_PHOTOS = pytest.mark.skipif(not PHOTOS.is_dir(), reason=f"no photographs at {PHOTOS}; set BOTANIFY_PHOTOS")


def on_photos(test):
    """Marks a test that needs photographs."""
    return pytest.mark.photos(_WITHOUT_PHOTOS(test))


def ran(*command, cwd=ROOT, check=False, **options):
    """A process that has ended, with what it wrote."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, check=check, capture_output=True, text=True, **options)


def kill_when(condition, *command):
    """Starts a program, and kills it as soon as the condition holds."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        wait_until(condition, process)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it had ended before"


def require_ended(processes):
    """Asserts that processes end soon; kills those that do not."""
    _, alive = psutil.wait_procs(processes, timeout=300)
    for process in alive:
        process.kill()
    assert processes
    assert not alive
