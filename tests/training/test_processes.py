import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver

import psutil
import pytest
from torch.utils.data._utils.signal_handling import _set_worker_signal_handlers

from models.errors import DataError
from tests.make import ROOT, require_ended
from training.processes import clean_context, clear_error_if_killed, init_loader_worker

PROGRAM = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from training.processes import clean_context, end_with_parent
pool = ProcessPoolExecutor(1, mp_context=clean_context(), initializer=end_with_parent)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(60)
"""


def test_a_killed_worker_is_one_clear_error():
    def lose_one():
        with clear_error_if_killed(), ProcessPoolExecutor(1, mp_context=clean_context()) as pool:
            pool.submit(os._exit, 1).result()

    with pytest.raises(DataError, match="fewer --workers"):
        lose_one()


def test_workers_and_their_server_end_with_a_killed_program():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        worker = psutil.Process(int(process.stdout.readline()))
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    assert worker in family
    assert len(family) == 3  # the worker, the fork server, and the resource tracker
    require_ended(family)


class StartsThread:
    """Starts a thread when it is unpickled, as a manifest does, which Arrow reads."""

    def __reduce__(self):
        return start_thread, ()


def start_thread():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def serve(started, _data_set):
    _set_worker_signal_handlers()  # as PyTorch does in a loader process
    init_loader_worker()
    started.put(os.getpid())
    time.sleep(60)


def test_a_loader_process_ends_on_sigterm_from_its_program_only():
    context = clean_context("training.loading.data")
    started = context.SimpleQueue()
    process = context.Process(target=serve, args=(started, StartsThread()), daemon=True)
    process.start()
    pid = started.get()
    for name in ("-TERM", "-INT"):
        subprocess.run(["kill", name, str(pid)], check=True)
    process.join(0.5)
    assert process.is_alive()
    for _ in range(100):  # a signal that arrives while the one from `kill` is pending is lost
        process.terminate()
        process.join(1)
    assert process.exitcode == 0


@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="this platform has no fork server"
)
def test_the_fork_server_does_not_end_on_sigterm():
    clean_context("training.loading.data")
    server = forkserver._forkserver._forkserver_pid
    subprocess.run(["kill", "-TERM", str(server)], check=True)
    assert clean_context("training.loading.data").Process(target=os.getpid).start() is None
    assert forkserver._forkserver._forkserver_pid == server
