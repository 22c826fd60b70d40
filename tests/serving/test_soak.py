"""Twenty minutes of good, hostile and slow clients, while bundles are reloaded and decoder processes are killed."""

import random
import signal
import socket
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from tests.serving.load import ClosedLoad, best, point, version_of
from tests.serving.program import service
from tests.serving.test_fuzzing import ANSWERS, mutated, raw, request
from tests.serving.tiny import BLUE, WEIGHTS, jpeg

_SOAK_S = 20 * 60
_MOST_GROWTH = 1.10
_HOSTILE, _SLOW = ("127.0.0.3", 0), ("127.0.0.4", 0)


def disturb(running, live, folders, statuses, over):
    """What goes on until the time is over, in a thread each."""
    address, upload = running.address(), request(jpeg(BLUE, (200, 150)))
    rng = random.Random(0)

    def attack():
        while not over.wait(0.02):
            statuses[raw(address, mutated(upload, rng), source=_HOSTILE)] += 1

    def trickle():
        while not over.wait(0.5):
            with suppress(OSError), socket.create_connection(address, 20, _SLOW) as connection:
                for at in range(rng.randrange(len(upload))):
                    connection.sendall(upload[at : at + 1])
                    if over.wait(0.02):
                        break

    def kill_and_reload():
        number = 0
        while not over.wait(2):
            number += 1
            if number % 10 == 0:
                point(live, folders[number // 10 % 2])
                running.process.send_signal(signal.SIGHUP)
            with suppress(psutil.NoSuchProcess, IndexError):
                rng.choice(psutil.Process(running.process.pid).children(recursive=True)).kill()
                statuses["killed"] += 1

    return attack, trickle, kill_and_reload


@pytest.mark.slow
@pytest.mark.timeout(_SOAK_S + 300)
def test_service_survives_twenty_minutes_of_everything(sealed, tmp_path):
    folders = [sealed("1.0.0"), sealed("2.0.0", WEIGHTS[::-1].copy())]
    live, statuses, over, sizes = tmp_path / "live", Counter(), threading.Event(), []
    live.symlink_to(folders[0])
    with service(live, "--num-decoders", "2", "--upload-s", "5") as running:
        with ClosedLoad(running.url, num_clients=2).running() as load, ThreadPoolExecutor() as pool:
            works = [pool.submit(work) for work in disturb(running, live, folders, statuses, over)]
            for _ in range(_SOAK_S):
                time.sleep(1)
                sizes.append(psutil.Process(running.process.pid).memory_info().rss)
            over.set()
            for work in works:
                work.result()
        assert running.stop() == 0
    assert (load.lost, set(load.statuses)) == ([], {200})
    assert len(load.answers) > _SOAK_S
    named = sorted({(version_of(response), best(response)) for _, response in load.answers})
    assert [version for version, _ in named] == ["1.0.0", "2.0.0"]  # with one name each
    assert named[0][1] == "Rosa canina" != named[1][1]
    assert statuses.pop("killed") > 0.3 * _SOAK_S / 2
    assert set(statuses) <= ANSWERS | {0}, statuses
    assert not [line for line in running.lines if "Traceback" in line or '"internal"' in line]
    assert statistics.median(sizes[-60:]) < _MOST_GROWTH * statistics.median(sizes[110:130])
