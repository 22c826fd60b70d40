"""The search for int8: ranges by what they do to the answers, and exclusions only while they are worth their time."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from models.session import OnnxSession
from training.release.precisions import search
from training.release.precisions.search import RANGE_SHARES, Attempt, choose, search_int8


def attempt(name, distance, speedup):
    return Attempt(Path(name), 1.0, (), distance=distance, agreement=0.9, speedup=speedup)


def test_the_best_of_those_that_are_fast_enough_is_kept():
    attempts = [attempt("fast", 0.3, 1.5), attempt("better", 0.2, 1.3), attempt("best", 0.1, 1.2)]
    assert choose(attempts).path.name == "better"


def test_the_fastest_is_kept_where_none_is_fast_enough():
    attempts = [attempt("first", 0.3, 1.1), attempt("second", 0.2, 1.2), attempt("third", 0.1, 0.9)]
    assert choose(attempts).path.name == "second"


@pytest.fixture
def timed(monkeypatch):
    """As fast as each is said to be, one after the other; the last holds for all that follow."""
    ratios = []

    def ratio(fast, slow, pixels, *, num_pairs):
        return SimpleNamespace(ratio=ratios.pop(0) if len(ratios) > 1 else ratios[0])

    monkeypatch.setattr(search, "speedup", ratio)
    return ratios


def test_ranges_that_move_the_answers_least_are_chosen(single, learned, tmp_path, timed, monkeypatch):
    timed.append(2.0)
    monkeypatch.setattr(search, "ENOUGH_AGREEMENT", 0.0)
    found = search_int8(single, tmp_path, learned, learned)
    assert found.range_share in RANGE_SHARES
    assert found.excluded == ()
    assert found.agreement >= 0.8
    whole, coarse = (learned.logits(path) for path in (single, found.path))
    assert found.agreement == pytest.approx(float((whole.argmax(axis=1) == coarse.argmax(axis=1)).mean()))
    assert OnnxSession(found.path).output_keys == OnnxSession(single).output_keys


def test_nodes_are_excluded_as_long_as_it_stays_fast_enough(single, learned, tmp_path, timed, monkeypatch):
    timed += [2.0, 1.9, 1.26, 1.1]
    monkeypatch.setattr(search, "ENOUGH_AGREEMENT", 1.1)
    monkeypatch.setattr(search, "RANGE_SHARES", (1.0,))
    monkeypatch.setattr(
        search, "_distance", lambda logits, single: 1.0 / sum(1 for _ in tmp_path.glob("int8_attempt*"))
    )
    found = search_int8(single, tmp_path, learned, learned)
    assert found.path.name == "int8_attempt3.onnx"  # each was better than the one before, and the fourth too slow
    assert found.excluded
    assert found.speedup == 1.26


def test_nothing_is_excluded_where_the_time_is_too_long_already(single, learned, tmp_path, timed, monkeypatch):
    timed.append(1.0)
    monkeypatch.setattr(search, "ENOUGH_AGREEMENT", 1.1)
    monkeypatch.setattr(search, "RANGE_SHARES", (1.0,))
    found = search_int8(single, tmp_path, learned, learned)
    assert len(list(tmp_path.glob("int8_attempt*"))) == 1
    assert (found.excluded, found.speedup) == ((), 1.0)


def test_the_distance_is_that_of_the_answers():
    certain = np.array([[20.0, 0.0], [0.0, 20.0]], dtype=np.float32)
    assert search._distance(certain, certain) == 0
    assert search._distance(certain, certain[::-1]) == pytest.approx(1, abs=1e-6)
    assert search._distance(certain, certain[[0, 0]]) == pytest.approx(0.5, abs=1e-6)
