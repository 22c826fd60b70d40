"""Clients that ask the running service while a test does something to it."""

import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx2

from tests.serving.program import PATIENCE_S
from tests.serving.tiny import images, jpeg
from tests.waiting import wait_until


class ClosedLoad:
    """Clients that ask about a picture, wait for the answer and ask again until the block ends.

    Each has its own connection, and closed ones are reopened. Answers and lost requests have the time when they began.
    """

    def __init__(self, url, num_clients=4):
        self.url, self.num_clients, self.picture = str(url), num_clients, images(jpeg())
        self.answers, self.lost = [], []  # (when, response), (when, error)
        self._stop = threading.Event()

    @contextmanager
    def running(self):
        threads = [threading.Thread(target=self._ask) for _ in range(self.num_clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for_answers(self, num_answers):
        """Waits for this many more answers."""
        wanted = len(self.answers) + num_answers
        wait_until(lambda: len(self.answers) >= wanted)

    @property
    def statuses(self):
        return Counter(response.status_code for _, response in self.answers)

    def _ask(self):
        with httpx2.Client(base_url=self.url, timeout=PATIENCE_S, verify=False) as client:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self.answers.append((began, client.post("/identify", files=self.picture)))
                except httpx2.ConnectError:
                    return  # the port is closed, and no request was lost
                except httpx2.HTTPError as error:
                    self.lost.append((began, error))


def version_of(response):
    return response.json()["model"]["version"]


def best(response):
    return response.json()["predictions"][0]["scientific_name"]


def point(link, folder):
    """Points the link to another folder, atomically."""
    new = link.with_suffix(".new")
    new.symlink_to(folder)
    new.replace(link)
