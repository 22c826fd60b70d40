"""The networks run in turns, so that other load slows both alike."""

from pathlib import Path

import numpy as np
import pytest

from training.bundling.precisions import speed
from training.bundling.precisions.speed import speedup

PIXELS = np.zeros((1, 3, 8, 8), dtype=np.float32)
SECONDS = {"fast": 0.002, "slow": 0.005}


class Clock:
    """A clock that advances only while a network runs, and records the runs in order."""

    def __init__(self):
        self.now, self.runs, self.threads, self.load = 0.0, [], set(), 1.0

    def open(self, path, *, num_threads):
        self.threads.add(num_threads)
        clock = self

        class Network:
            def run(self, pixels):
                clock.runs.append(path.name)
                clock.now += SECONDS[path.name] * clock.load

        return Network()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(speed, "OnnxSession", clock.open)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock.now)
    return clock


def measure(**options):
    return speedup(Path("fast"), Path("slow"), PIXELS, **options)


def test_the_ratio_is_how_many_times_as_fast(clock):
    found = measure(num_pairs=9)
    assert found.ratio == pytest.approx(2.5)
    assert (found.fast_ms, found.slow_ms, found.num_pairs) == (pytest.approx(2), pytest.approx(5), 9)


def test_the_networks_alternate_and_so_does_the_order(clock):
    measure(num_pairs=4)
    pairs = [tuple(clock.runs[at : at + 2]) for at in range(len(clock.runs) - 8, len(clock.runs), 2)]
    assert pairs == [("slow", "fast"), ("fast", "slow"), ("slow", "fast"), ("fast", "slow")]


def test_the_first_runs_do_not_count(clock):
    measure(num_pairs=2)
    assert clock.runs.count("fast") == clock.runs.count("slow") == 5


def test_a_run_has_one_thread(clock):
    measure(num_pairs=1)
    assert clock.threads == {1}


def test_a_few_disturbed_pairs_do_not_move_the_ratio(clock, monkeypatch):
    disturbed = iter([50.0 if turn in {3, 4, 9} else 1.0 for turn in range(40)])
    seconds = speed._seconds

    def disturb(session, pixels):
        clock.load = next(disturbed)
        return seconds(session, pixels)

    monkeypatch.setattr(speed, "_seconds", disturb)
    assert measure(num_pairs=20).ratio == pytest.approx(2.5)


def test_a_network_is_as_fast_as_itself(single):
    pixels = np.zeros((1, 3, 32, 32), dtype=np.float32)
    assert speedup(single, single, pixels, num_pairs=31).ratio == pytest.approx(1, abs=0.5)
