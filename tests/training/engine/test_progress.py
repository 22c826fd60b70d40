"""The progress of a run: lines without a terminal, and how long the rest takes."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.training.small import RECIPE
from training.engine.progress import Pace, RunProgress, in_words
from training.recipe import read_recipe

TINY = read_recipe(RECIPE)
SECONDS = st.floats(0.01, 1000)


def run_epochs(pace, epochs, num_batches, batch_s, between_s=0.0, start_s=0.0):
    """Takes whole epochs of batches of one length; returns the time of the last."""
    now = start_s
    for epoch in range(epochs):
        pace.begin_epoch(epoch, num_batches, 0)
        for batch in range(num_batches):
            now += batch_s if batch else between_s
            pace.advance(now)
    return now


@given(st.integers(1, 6), st.integers(2, 50), st.data(), SECONDS)
def test_the_time_left_is_that_of_the_batches_left(epochs, num_batches, data, batch_s):
    pace = Pace([1.0] * epochs)
    done = data.draw(st.integers(2, num_batches))
    pace.begin_epoch(0, num_batches, 0)
    for batch in range(done):
        pace.advance(batch_s * batch)
    assert pace.epoch_left_s == pytest.approx((num_batches - done) * batch_s)
    assert pace.run_left_s == pytest.approx((epochs * num_batches - done) * batch_s)


@given(st.integers(1, 5), SECONDS, SECONDS)
def test_the_time_between_two_epochs_comes_again_after_each(later, batch_s, between_s):
    pace = Pace([1.0] * (2 + later))
    run_epochs(pace, 2, 10, batch_s, between_s)
    assert pace.run_left_s == pytest.approx(later * 10 * batch_s + (later + 1) * between_s)


def test_larger_pictures_of_later_epochs_take_longer():
    pace = Pace([100.0, 400.0])
    run_epochs(pace, 1, 10, batch_s=1)
    assert pace.run_left_s == pytest.approx(40)


def test_a_slow_while_moves_the_time_left_only_as_far_as_it_moves_the_mean():
    pace = Pace([1.0] * 10)
    now = run_epochs(pace, 1, 100, batch_s=1)
    pace.begin_epoch(1, 100, 0)
    for batch in range(6):
        pace.advance(now + 10 * batch)
    mean_s = (99 * 1 + 5 * 10) / 104
    assert pace.batch_s == pytest.approx(10)  # the speed that is shown is that of the epoch
    assert pace.run_left_s == pytest.approx((94 + 800) * mean_s)


def test_every_validation_so_far_counts_for_those_to_come():
    pace = Pace([1.0] * 6)
    now = 0.0
    for epoch, between_s in enumerate((0, 5, 95, 5, 95)):  # every second epoch is validated
        pace.begin_epoch(epoch, 2, 0)
        pace.advance(now + between_s)
        now += between_s + 1
        pace.advance(now)
    assert pace.run_left_s == pytest.approx(2 * 1 + 2 * 50)


@given(st.integers(0, 40), SECONDS)
def test_a_run_resumed_inside_an_epoch_has_only_the_rest_before_it(done_before, batch_s):
    pace = Pace([1.0, 1.0])
    pace.begin_epoch(1, 50, done_before)
    for batch in range(5):
        pace.advance(batch_s * batch)
    assert pace.run_left_s == pytest.approx((45 - done_before) * batch_s)


def test_a_slow_first_batch_does_not_count():
    pace = Pace([1.0])
    pace.begin_epoch(0, 10, 0)
    pace.advance(300)
    assert (pace.batch_s, pace.run_left_s) == (0, 0)
    pace.advance(301)
    assert pace.epoch_left_s == pytest.approx(8)


@pytest.mark.parametrize(
    ("limits", "left_s"),
    [({"most_batches": 30}, 20), ({"most_seconds": 100}, 91), ({"most_batches": 5}, 0), ({"most_seconds": 9000}, 190)],
)
def test_a_limit_of_this_process_ends_the_run_sooner(limits, left_s):
    pace = Pace([1.0] * 2, **limits)
    pace.begin_epoch(0, 100, 0)
    for batch in range(10):
        pace.advance(float(batch))
    assert pace.run_left_s == pytest.approx(left_s)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3540, "59 min"),
        (3599, "1 h 0 min"),
        (7020, "1 h 57 min"),
        (172_799, "2 d 0 h"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_length_of_time_has_two_units(seconds, words):
    assert in_words(seconds) == words


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(file, seconds_of_a_batch, num_batches=100, recipe=TINY, **environment):
    """What a run of two epochs writes."""
    now = [0.0]
    console = Console(file=file, width=60, _environ=environment)
    progress = RunProgress(recipe, console, clock=lambda: now[0])
    with progress.shown():
        for epoch in (1, 2):
            progress.begin_epoch(epoch, num_batches=num_batches, num_done=0, global_batch=8)
            for batch in range(num_batches):
                now[0] += seconds_of_a_batch
                if batch % 20 == 0:
                    progress.learned(2.5, waiting=0.04)
                progress.advance()
    return file.getvalue()


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_a_terminal_a_plain_line_is_written_each_minute(environment):
    lines = shown(io.StringIO(), 1.0, **environment).splitlines()
    assert [int(re.search(r": (\d+) of", line)[1]) for line in lines] == [60, 20, 80]
    assert lines[0] == (
        "epoch 1/2: 60 of 100 batches, 8.0 pictures/s, loss 2.500, 4% waiting; 40 s left of the epoch, 2 min of the run"
    )
    assert "\x1b" not in "".join(lines)


@given(st.floats(0.5, 500), st.integers(2, 30))
def test_there_is_a_line_a_minute(batch_s, num_batches):
    lines, total_s = shown(io.StringIO(), batch_s, num_batches).splitlines(), 2 * num_batches * batch_s
    # The first batch of an epoch gives no line, so two lines are at most a minute and two batches apart.
    assert total_s / (60 + 2 * batch_s) - 1 <= len(lines) <= total_s / 60


def test_a_short_run_writes_no_line():
    assert shown(io.StringIO(), 0.2) == ""


def test_a_terminal_has_a_bar():
    written = shown(Terminal(), 1.0, TERM="xterm")
    assert "epoch 2" in written
    assert "left in all" in written
    assert "of 100 batches" not in written
