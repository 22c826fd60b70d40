"""Runs the program in a process of its own and reads its log."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx2

from tests.make import ROOT, ran
from tests.waiting import PATIENCE_S, wait_until

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("BOTANIFY_")}


class RunningService:
    """A running service and its lines on standard error."""

    def __init__(self, process):
        self.process, self.lines = process, []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def event(self, name, **fields):
        """Waits for a log event with these fields and returns it."""

        def found():
            events = (json.loads(line) for line in list(self.lines) if line.startswith("{"))
            return next((each for each in events if each.items() >= {"event": name, **fields}.items()), None)

        event = wait_until(found, self.process)
        assert event, f"no event {name!r}; the last lines are {self.lines[-5:]}"
        return event

    def reload(self, version=None):
        """Has the service read its bundle again, and waits until it answers with it."""
        self.process.send_signal(signal.SIGHUP)
        self.event("reloaded", **({"version": version} if version else {}))

    def stop(self, number=signal.SIGTERM):
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.reader.join(PATIENCE_S)
        return code

    @property
    def url(self):
        return self.event("listening")["url"]

    def address(self):
        host, port = re.fullmatch(r"http://(.+):(\d+)", self.url).groups()
        return host, int(port)

    def client(self):
        return httpx2.Client(base_url=self.url, timeout=60, verify=False)  # to read the certificates takes 20 ms


@contextmanager
def service(bundle, *flags, cwd=ROOT, **environment):
    """The running program; without a bundle, with the one that the flags or the defaults name."""
    named = ("--bundle", bundle) if bundle else ()
    command = [sys.executable, "-m", "serving", *named, "--port", "0", "--drain-s", "0", *flags]
    process = subprocess.Popen(
        command, cwd=cwd, env={**ENVIRONMENT, **environment}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    running = RunningService(process)
    try:
        running.event("ready")
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        running.reader.join(5)
        process.stdout.close()
        process.stderr.close()


def run(*flags, cwd=ROOT, program=("-m", "serving"), **environment):
    return ran(sys.executable, *program, *flags, cwd=cwd, env={**ENVIRONMENT, **environment}, timeout=PATIENCE_S)


def assert_one_clear_line(process, *words):
    """Checks that the program failed with one line that contains the words."""
    assert process.returncode == 1
    logged = ("{", "\x1b[1;31m20")  # our log lines, and ONNX Runtime's line about an error that it also raises
    lines = [line for line in process.stderr.splitlines() if not line.startswith(logged)]
    assert len(lines) == 1, process.stderr
    assert lines[0].startswith("error (")
    for word in words:
        assert word in lines[0]
