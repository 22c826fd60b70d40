import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver

import psutil
import pytest

from models.errors import DataError
from tests.training.small import ROOT
from training.processes import clean_context, serve_training, told_if_killed

PROGRAM = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from training.processes import clean_context, end_with_parent
pool = ProcessPoolExecutor(1, mp_context=clean_context(), initializer=end_with_parent)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(60)
"""


def test_a_killed_helper_is_one_clear_error():
    def lose_one():
        with told_if_killed(), ProcessPoolExecutor(1, mp_context=clean_context()) as pool:
            pool.submit(os._exit, 1).result()

    with pytest.raises(DataError, match="fewer --workers"):
        lose_one()


def test_helpers_and_their_server_end_with_a_killed_program():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        helper = psutil.Process(int(process.stdout.readline()))
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    assert helper in family
    assert len(family) == 3  # the helper, its server, and the one that cleans up behind both
    _, alive = psutil.wait_procs(family, timeout=30)
    for left in alive:
        left.kill()
    assert not alive


def serve(started):
    serve_training()
    started.put(os.getpid())
    time.sleep(60)


def test_a_loader_process_ends_when_its_program_says_so_and_not_by_a_signal_to_all():
    context = clean_context("training.loading.data")
    started = context.SimpleQueue()
    process = context.Process(target=serve, args=(started,), daemon=True)
    process.start()
    pid = started.get()
    subprocess.run(["kill", "-TERM", str(pid)], check=True)
    process.join(0.5)
    assert process.is_alive()
    process.terminate()
    process.join(20)
    assert process.exitcode == 0


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="no fork server here")
def test_the_server_of_helpers_outlives_a_signal_to_all():
    clean_context("training.loading.data")
    server = forkserver._forkserver._forkserver_pid
    subprocess.run(["kill", "-TERM", str(server)], check=True)
    assert clean_context("training.loading.data").Process(target=os.getpid).start() is None
    assert forkserver._forkserver._forkserver_pid == server
