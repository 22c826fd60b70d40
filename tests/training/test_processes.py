import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import psutil
import pytest

from models.errors import DataError
from tests.training.small import ROOT
from training.processes import clean_context, told_if_killed

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
