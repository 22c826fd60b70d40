"""Clients that ask the running service while a test does something to it."""

import asyncio
import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx2

from tests.serving.program import PATIENCE_S
from tests.serving.tiny import images, jpeg
from tests.waiting import wait_until


class Load:
    """Asks about a picture until the block ends; an answer and a lost request have the time when they began."""

    def __init__(self, url):
        self.url, self.picture = str(url), images(jpeg())
        self.answers, self.lost = [], []  # (when, response), (when, error)
        self._stop = threading.Event()

    @contextmanager
    def running(self):
        threads = [threading.Thread(target=target) for target in self._targets()]
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


class ClosedLoad(Load):
    """Clients that wait for an answer and ask again, each over its own connection; closed ones are reopened."""

    def __init__(self, url, num_clients=4):
        super().__init__(url)
        self.num_clients = num_clients

    def _targets(self):
        return [self._ask] * self.num_clients

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


class OpenLoad(Load):
    """Asks `per_s` times a second, whether or not the earlier ones have been answered; then waits for the answers."""

    def __init__(self, url, per_s):
        super().__init__(url)
        self.per_s = per_s

    def _targets(self):
        return [lambda: asyncio.run(self._send_all())]

    async def _send_all(self):
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx2.AsyncClient(timeout=600, limits=limits) as client, asyncio.TaskGroup() as requests:
            due = time.monotonic()
            while not self._stop.is_set():
                requests.create_task(self._send(client))
                due += 1 / self.per_s
                await asyncio.sleep(due - time.monotonic())

    async def _send(self, client):
        sent = time.monotonic()
        try:
            self.answers.append((sent, await client.post(f"{self.url}/identify", files=self.picture)))
        except httpx2.HTTPError as error:
            self.lost.append((sent, error))


def version_of(response):
    return response.json()["model"]["version"]


def best(response):
    return response.json()["predictions"][0]["scientific_name"]


def point(link, folder):
    """Points the link to another folder, atomically."""
    new = link.with_suffix(".new")
    new.symlink_to(folder)
    new.replace(link)
