"""Children are killed at random moments under load: every picture is decoded, or the client may try again."""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from models.preprocess import picture_to_input
from serving.errors import NotReady
from tests.models.pictures import encode, foliage
from tests.serving.decoding.running_pool import RESTARTS, SPEC, RunningPool, value
from tests.waiting import until

NUM_CLIENTS = 4
PICTURES = [encode(foliage((800, 600)), name) for name in ("JPEG", "PNG", "WEBP")]


async def kill_at_random_moments(running, num_kills, generator):
    for number in range(num_kills):
        await until(lambda: running.pool.num_alive == 2)
        await asyncio.sleep(generator.uniform(0, 0.2))
        pids = sorted(running.pids())
        for pid in pids if number % 10 == 0 else [generator.choice(pids)]:  # sometimes both at once
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await until(lambda: running.pool.num_alive < 2)


@pytest.mark.parametrize("num_kills", [5, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)])])
def test_no_picture_is_refused_or_lost_if_children_are_killed(num_kills):
    generator = random.Random(num_kills)
    expected = [picture_to_input(data, SPEC)[0] for data in PICTURES]
    outcomes = Counter()
    with RunningPool(2) as running:

        async def send(killer):
            while not killer.done():
                number = generator.randrange(len(PICTURES))
                try:
                    decoded = await running.pool.decode(PICTURES[number], SPEC)
                except NotReady:
                    outcomes["503"] += 1
                else:
                    outcomes["200" if np.array_equal(decoded.pixels, expected[number]) else "wrong"] += 1

        async def load():
            killer = asyncio.create_task(kill_at_random_moments(running, num_kills, generator))
            await asyncio.gather(*(send(killer) for _ in range(NUM_CLIENTS)))  # any other error fails the test

        running.run(load())
        print(num_kills, "kills:", dict(outcomes), "restarts:", value(running.metrics, RESTARTS))
        assert set(outcomes) <= {"200", "503"}, outcomes
        assert outcomes["200"] > 0
        running.wait_for_all(2)
        assert value(running.metrics, "botanify_decode_bytes") == 0
