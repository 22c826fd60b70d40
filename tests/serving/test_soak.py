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

import httpx2
import psutil
import pytest

from tests.serving.load import point
from tests.serving.program import service
from tests.serving.test_fuzzing import ANSWERS, mutated, raw, request
from tests.serving.tiny import BLUE, GREEN, RED, WEIGHTS, draw, encode, images, jpeg

_SOAK_S = 20 * 60
_RELOAD_EVERY_S, _KILL_EVERY_S = 20, 2
_COLORS = {"red": RED, "green": GREEN, "blue": BLUE}
_MOST_GROWTH = 1.10
_HONEST, _HOSTILE, _SLOW = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class Soak:
    """A running service and the threads that work on it until the time is over."""

    def __init__(self, running, live, folders, seconds):
        self.running, self.live, self.folders = running, live, folders
        self.url, self.address, self.pid = running.url, running.address(), running.process.pid
        self.seconds, self.over = seconds, threading.Event()
        self.honest, self.strangers = [], Counter()
        self.samples = []
        self.num_killed = self.num_reloads = 0

    def run(self):
        works = (self.ask, self.ask, self.attack, self.trickle, self.reload, self.kill, self.sample)
        with ThreadPoolExecutor(len(works)) as pool:
            done = [pool.submit(work, random.Random(seed)) for seed, work in enumerate(works)]
            self.over.wait(self.seconds)
            self.over.set()
        for work in done:
            work.result()  # raises the work's error, such as a lost connection of the honest client

    def ask(self, rng):
        """The honest client: a picture at a time; notes what was sent and what came back."""
        transport = httpx2.HTTPTransport(local_address=_HONEST)
        with httpx2.Client(base_url=self.url, timeout=30, transport=transport) as client:
            while not self.over.wait(0.05):
                color = rng.choice(sorted(_COLORS))
                answer = client.post("/identify", files=images(jpeg(_COLORS[color], size=(320, 240))))
                self.honest.append((color, answer.status_code, answer.json()))

    def attack(self, rng):
        picture = jpeg(BLUE, size=(200, 150))
        while not self.over.wait(0.02):
            self.strangers[raw(self.address, mutated(request(picture), rng), source=(_HOSTILE, 0))] += 1

    def trickle(self, rng):
        """Sends a byte at a time, until the service refuses the body or the client loses patience."""
        picture = encode(draw(GREEN, (64, 48)), "PNG")
        while not self.over.wait(0.5):
            with suppress(OSError), socket.create_connection(self.address, 20, (_SLOW, 0)) as connection:
                body = request(picture)
                for at in range(rng.randrange(len(body))):
                    connection.sendall(body[at : at + 1])
                    if self.over.wait(0.02):
                        break

    def reload(self, _):
        while not self.over.wait(_RELOAD_EVERY_S):
            self.num_reloads += 1
            point(self.live, self.folders[self.num_reloads % len(self.folders)])
            self.running.process.send_signal(signal.SIGHUP)

    def kill(self, rng):
        """Kills a decoder process at a time."""
        while not self.over.wait(_KILL_EVERY_S):
            if decoders := decoder_processes(self.pid):
                with suppress(psutil.NoSuchProcess):
                    rng.choice(decoders).kill()
                    self.num_killed += 1

    def sample(self, _):
        start = time.monotonic()
        while not self.over.wait(1):
            self.samples.append((time.monotonic() - start, psutil.Process(self.pid).memory_info().rss))

    def memory(self, first_s, last_s):
        """The median RSS of the service's process in a part of the soak, bytes."""
        return statistics.median(rss for at, rss in self.samples if first_s <= at <= last_s)


def decoder_processes(pid):
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "serving.engine.decoding.child" in child.cmdline():
                found.append(child)
    return found


@pytest.fixture
def folders(sealed):
    """Two bundles with different answers to each picture."""
    return [sealed("1.0.0"), sealed("2.0.0", WEIGHTS[::-1].copy())]


def assert_sound(soak, bests):
    """Checks what the soak found; `bests` are the right answers by version and color."""
    answers = Counter(code for _, code, _ in soak.honest)
    assert answers[200] > soak.seconds, answers  # more than one a second
    assert set(answers) == {200}, answers
    wrong = [
        (color, document["model"]["version"], best(document))
        for color, _, document in soak.honest
        if best(document) != bests[document["model"]["version"], color]
    ]
    assert not wrong, wrong[:5]
    assert {document["model"]["version"] for _, _, document in soak.honest} == {"1.0.0", "2.0.0"}
    assert set(soak.strangers) <= ANSWERS | {0}, soak.strangers
    assert soak.num_killed > 0.3 * soak.seconds / _KILL_EVERY_S
    assert not [line for line in soak.running.lines if "Traceback" in line or '"internal"' in line]


def best(document):
    return document["predictions"][0]["scientific_name"]


def best_answers(folders):
    """The answer of an undisturbed service, by version and color."""
    found = {}
    for folder in folders:
        with service(folder) as running:
            for color, rgb in _COLORS.items():
                picture = images(jpeg(rgb, size=(320, 240)))
                document = httpx2.post(f"{running.url}/identify", files=picture).json()
                found[document["model"]["version"], color] = best(document)
    return found


@pytest.mark.slow
@pytest.mark.timeout(_SOAK_S + 300)
def test_service_survives_twenty_minutes_of_everything(folders, tmp_path):
    live = tmp_path / "live"
    live.symlink_to(folders[0])
    bests = best_answers(folders)
    with service(live, "--num-decoders", "2", "--upload-s", "5") as running:
        soak = Soak(running, live, folders, _SOAK_S)
        soak.run()
        assert running.stop() == 0
    early, late = soak.memory(110, 130), soak.memory(_SOAK_S - 60, _SOAK_S)
    print(
        f"{len(soak.honest)} answers, {soak.num_killed} kills, {soak.num_reloads} reloads; strangers: {soak.strangers}"
    )
    print(f"RSS {early / 1e6:.0f} MB in minute two, {late / 1e6:.0f} MB at the end")
    assert_sound(soak, bests)
    assert late < _MOST_GROWTH * early
