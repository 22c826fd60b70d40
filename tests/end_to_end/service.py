"""The real service as a program of its own, for as long as a test needs it."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 60


@contextmanager
def running_service(log: Path, *arguments: object, cwd: Path | None = None) -> Iterator[httpx.Client]:
    """Starts `python -m serving` on a free port, waits until it is ready, and stops it by SIGTERM.

    Its log goes to a file: a pipe that nobody reads would fill up and stop the service.
    """
    command = [sys.executable, "-m", "serving", "--port", "0", *map(str, arguments)]
    with log.open("wb") as stream, subprocess.Popen(command, cwd=cwd, stderr=stream) as process:
        try:
            with httpx.Client(base_url=wait_until_ready(process, log), timeout=60) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0, log.read_text()


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """Gives the service's address."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        told = log.read_text()
        if (address := re.search(r"http://[\d.:]+", told)) and '"event": "ready"' in told:
            return address[0]
        time.sleep(0.05)
    raise AssertionError(f"the service did not become ready:\n{log.read_text()}")
