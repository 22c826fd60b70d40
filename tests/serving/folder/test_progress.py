"""A run says how far it is."""

import io

import pytest

from serving.folder import run
from serving.folder.run import Progress

OK, FAILED = {"status": "ok", "num_photographs": 1}, {"status": "failed", "num_photographs": 2}


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(run, "time", clock)
    return clock


def test_a_line_a_minute_with_rate_and_time_left(clock):
    stream = io.StringIO()
    progress = Progress(1000, 50, stream)
    for _ in range(240):
        clock.now += 0.5
        progress.add(OK)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "170 of 1,050 plants, 2.0 a second, 7 min left"


def test_failures_are_counted(clock):
    stream = io.StringIO()
    progress = Progress(10, 0, stream)
    progress.add(FAILED)
    clock.now += 61
    progress.add(OK)
    clock.now += 5  # the table is joined: that is not counted
    progress.end()
    assert "2 of 10 plants, 1 failed" in stream.getvalue()
    assert (progress.num_done, progress.num_photographs, progress.seconds) == (2, 3, 61)
