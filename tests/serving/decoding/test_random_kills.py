"""Children end at any moment under load: every picture is decoded, or the client may try again."""

import asyncio
import os
import signal
from contextlib import suppress

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from models.preprocess import picture_to_input
from serving.errors import NotReady
from tests.models.pictures import encode, foliage
from tests.serving.decoding.running_pool import SPEC, value

PICTURES = [encode(foliage((800, 600)), name) for name in ("JPEG", "PNG", "WEBP")]
EXPECTED = [picture_to_input(data, SPEC)[0] for data in PICTURES]


class EndingChildren(RuleBasedStateMachine):
    """A pool of two children, pictures that are decoded or given up, and signals from outside."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.decodes = []  # number of the picture, and its task

    async def begin(self, number):
        return asyncio.create_task(self.pool.pool.decode(PICTURES[number], SPEC))

    @rule(number=st.sampled_from(range(3)))
    def decode(self, number):
        self.decodes.append((number, self.pool.run(self.begin(number))))

    @precondition(lambda self: self.decodes)
    @rule()
    def give_up_the_newest(self):
        self.decodes[-1][1].cancel()

    @rule(number=st.sampled_from([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]), both=st.booleans())
    def send(self, number, both):
        for pid in sorted(self.pool.pids())[: 1 + both]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @rule(seconds=st.sampled_from([0, 0.02, 0.2]))
    def go_on(self, seconds):
        self.pool.run(asyncio.sleep(seconds))

    def teardown(self):
        async def outcomes():
            return await asyncio.gather(*(task for _, task in self.decodes), return_exceptions=True)

        for (number, _), outcome in zip(self.decodes, self.pool.run(outcomes()), strict=True):
            assert isinstance(outcome, NotReady | asyncio.CancelledError) or np.array_equal(
                outcome.pixels, EXPECTED[number]
            )
        self.pool.wait_for_all(2)
        assert self.pool.decode(PICTURES[0]).format == "JPEG"
        assert value(self.pool.metrics, "botanify_decode_bytes") == 0


def test_no_picture_is_refused_or_lost_if_children_end(running):
    run_state_machine_as_test(
        lambda: EndingChildren(running), settings=settings(max_examples=3, stateful_step_count=10)
    )
