"""Requests at a fixed rate, sent whether or not the earlier ones have been answered."""

import asyncio
import threading
import time
from contextlib import contextmanager

import httpx

from tests.serving.tiny import RED, images, jpeg
from tests.waiting import wait_until


class OpenLoad:
    """Sends a picture `per_s` times a second until the block ends, then waits for the answers."""

    def __init__(self, url, per_s):
        self.url, self.per_s = url, per_s
        self.answers, self.lost = [], []  # (when the request was sent, response), (when, error)
        self._stop = threading.Event()

    @contextmanager
    def running(self):
        thread = threading.Thread(target=lambda: asyncio.run(self._send_all()))
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    async def _send_all(self):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=600, limits=limits) as client, asyncio.TaskGroup() as requests:
            due = time.monotonic()
            while not self._stop.is_set():
                requests.create_task(self._send(client))
                due += 1 / self.per_s
                await asyncio.sleep(due - time.monotonic())

    async def _send(self, client):
        sent = time.monotonic()
        try:
            self.answers.append((sent, await client.post(f"{self.url}/identify", files=images(jpeg(RED)))))
        except httpx.HTTPError as error:
            self.lost.append((sent, error))

    def wait_for_answers(self, num_answers):
        """Waits for this many more answers."""
        wanted = len(self.answers) + num_answers
        wait_until(lambda: len(self.answers) >= wanted)
