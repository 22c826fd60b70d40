"""Runs the service in a process of its own for the duration of a test."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.serving.program import PATIENCE_S


@contextmanager
def running_service(log: Path, *arguments: object, cwd: Path | None = None) -> Iterator[httpx.Client]:
    """Starts `python -m serving` on a free port, waits until it is ready, and stops it by SIGTERM.

    The log goes to a file, because an unread pipe would fill up and block the service.
    """
    command = [sys.executable, "-m", "serving", "--port", "0", *map(str, arguments)]
    with log.open("wb") as stream, subprocess.Popen(command, cwd=cwd, stderr=stream) as process:
        try:
            with httpx.Client(base_url=wait_until_ready(process, log), timeout=60) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, log.read_text()


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """Returns the service's URL."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text()
        if (url := re.search(r"http://[\d.:]+", text)) and '"event": "ready"' in text:
            return url[0]
        time.sleep(0.05)
    raise AssertionError(f"the service did not become ready:\n{log.read_text()}")
