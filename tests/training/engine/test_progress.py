"""The progress of a run: lines without a terminal, and how long the rest takes."""

import io
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.training.small import RECIPE
from training.engine.reporting import RunProgress, in_words
from training.recipe import read_recipe

TINY = read_recipe(RECIPE)
SECONDS = st.floats(0.01, 1000)


def progress_of(epochs=2, sides=(32,), limits=None):
    """A progress and a function that takes batches of one length, in seconds."""
    now = [0.0]
    steps = tuple(enumerate(sides))
    pictures = msgspec.structs.replace(TINY.pictures, picture_px=sides[-1], progressive=steps)
    schedule = msgspec.structs.replace(TINY.schedule, epochs=epochs)
    recipe = msgspec.structs.replace(TINY, pictures=pictures, schedule=schedule)
    progress = RunProgress(recipe, Console(file=io.StringIO()), clock=lambda: now[0])
    progress.shown(**limits or {}).__enter__()

    def take(batches, batch_s):
        for _ in range(batches):
            now[0] += batch_s
            progress.advance()
        return progress.left_s(now[0])

    return progress, take


@given(st.integers(1, 6), st.integers(2, 50), st.data(), SECONDS)
def test_the_time_left_is_that_of_the_batches_left(epochs, num_batches, data, batch_s):
    progress, take = progress_of(epochs)
    done = data.draw(st.integers(2, num_batches))
    progress.begin_epoch(1, num_batches=num_batches, num_done=0, global_batch=8)
    epoch_s, run_s = take(done, batch_s)
    assert epoch_s == pytest.approx((num_batches - done) * batch_s)
    assert run_s == pytest.approx((epochs * num_batches - done) * batch_s)


def test_larger_pictures_of_later_epochs_take_longer():
    progress, take = progress_of(2, sides=(32, 64))
    progress.begin_epoch(1, num_batches=10, num_done=0, global_batch=8)
    assert take(10, 1.0) == (0, pytest.approx(40))


def test_time_between_epochs_is_spread_over_the_work_to_come():
    progress, take = progress_of(3)
    progress.begin_epoch(1, num_batches=10, num_done=0, global_batch=8)
    take(10, 1.0)
    progress.begin_epoch(2, num_batches=10, num_done=0, global_batch=8)
    take(1, 11.0)  # a validation before it
    assert take(9, 1.0)[1] == pytest.approx(10 * (9 + 11 + 9) / 19)


@given(st.integers(0, 40), SECONDS)
def test_a_run_resumed_inside_an_epoch_has_only_the_rest_before_it(done_before, batch_s):
    progress, take = progress_of(2)
    progress.begin_epoch(2, num_batches=50, num_done=done_before, global_batch=8)
    assert take(5, batch_s)[1] == pytest.approx((45 - done_before) * batch_s)


def test_a_slow_first_batch_does_not_count():
    progress, take = progress_of(1)
    progress.begin_epoch(1, num_batches=10, num_done=0, global_batch=8)
    assert take(1, 300.0) == (0, 0)
    assert take(1, 1.0)[0] == pytest.approx(8)


@pytest.mark.parametrize(
    ("limits", "left_s"),
    [({"most_steps": 30}, 20), ({"most_seconds": 100}, 91), ({"most_seconds": 5}, 0), ({"most_seconds": 9000}, 190)],
)
def test_a_limit_of_this_process_ends_the_run_sooner(limits, left_s):
    progress, take = progress_of(2, limits=limits)
    progress.begin_epoch(1, num_batches=100, num_done=0, global_batch=8)
    assert take(10, 1.0)[1] == pytest.approx(left_s)


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
