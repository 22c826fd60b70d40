"""Processes that are started, weighed and ended together."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.serving.process_tree import MemoryWatch, ProcessTree
from tests.waiting import wait_until

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
HOLDS = "data = bytearray(b'x') * 60_000_000; import time; time.sleep(60)"
# A parent that starts a child, says so, and leaves it behind when it is told to end.
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {CHILD!r}]); time.sleep(60)"
# The same with a child in a session of its own.
APART = PARENT.replace("])", "], start_new_session=True)")


@pytest.fixture
def start(tmp_path):
    def start_one(code):
        command = [sys.executable, "-c", code]
        return ProcessTree(command, environment=dict(os.environ), log=tmp_path / "log", folder=tmp_path)

    return start_one


@pytest.mark.slow
@pytest.mark.parametrize("code", [PARENT, APART])
def test_children_that_outlive_their_parent_are_counted_and_killed(start, code):
    with start(code) as tree:
        wait_until(lambda: len(tree.members()) == 2)
        time.sleep(0.2)  # the child learns to ignore the signal
        pids = [process.pid for process in tree.members()]
        assert tree.end(grace_s=5) == 1
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


MEASUREMENT = """
import os, sys, time
from pathlib import Path
from benchmarks.serving.process_tree import ProcessTree
folder = Path(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2]]
with ProcessTree(command, environment=dict(os.environ), log=folder / "log", folder=folder) as tree:
    while len(pids := [process.pid for process in tree.members()]) < 2:
        time.sleep(0.02)
    print(*pids, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("server", [PARENT, APART])
def test_no_server_outlives_a_measurement_that_is_stopped(tmp_path, server):
    command = [sys.executable, "-c", MEASUREMENT, str(tmp_path), server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as measurement:
        processes = [psutil.Process(int(pid)) for pid in measurement.stdout.readline().split()]
        measurement.send_signal(signal.SIGTERM)
        assert measurement.wait(60) != 0
    wait_until(lambda: not any(process.is_running() and process.status() != "zombie" for process in processes))


def test_memory_and_its_peak_are_measured(start):
    with start(HOLDS) as tree:
        with MemoryWatch(tree, interval_s=0.05) as watch:
            wait_until(lambda: tree.memory_mb() > 60)
            time.sleep(0.2)
        assert 60 < watch.peak_mb < 120


def test_the_peak_memory_of_a_process_can_be_reset(start):
    with start(
        "data = bytearray(b'x') * 80_000_000; del data; print(1, flush=True); import time; time.sleep(60)"
    ) as tree:
        wait_until(lambda: tree.high_water_mb() > 80 > tree.memory_mb() > 1)
        wait_until(
            lambda: tree.reset_high_water() or tree.high_water_mb() < 50
        )  # freed pages leave a busy process late
