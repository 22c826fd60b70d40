"""What a run says: its plan before the first step, its epochs, and how long the rest takes."""

import io
import re
from contextlib import ExitStack, closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from models.program import duration_in_words
from tests.make import cases
from tests.training.small import RECIPE, command, events, make_trainer
from training.engine import reporting
from training.engine.device import Ranks
from training.engine.reporting import RunProgress, describe_run
from training.recipe import read_recipe
from training.train import train

TINY = read_recipe(RECIPE)
SECONDS = st.floats(0.01, 1000)


def begun(num_batches=10, epochs=2, sides=(32,)):
    """Begins an epoch; returns a function that takes batches of one length, in seconds, and tells the time left."""
    now = [0.0]
    pictures = replace(TINY.pictures, picture_px=sides[-1], progressive=tuple(enumerate(sides)))
    schedule = replace(TINY.schedule, epochs=epochs)
    recipe = replace(TINY, pictures=pictures, schedule=schedule)
    progress = RunProgress(recipe, Console(file=io.StringIO()), clock=lambda: now[0])

    def take(batches, batch_s):
        for _ in range(batches):
            now[0] += batch_s
            progress.advance()
        return progress.left_s(now[0])

    progress.begin_epoch(1, num_batches=num_batches, num_done=0, global_batch=8)
    return take


@given(st.integers(1, 6), st.integers(2, 50), st.data(), SECONDS)
def test_the_time_left_is_that_of_the_batches_left(epochs, num_batches, data, batch_s):
    done = data.draw(st.integers(2, num_batches))
    assert begun(num_batches, epochs)(done, batch_s) == pytest.approx((epochs * num_batches - done) * batch_s)


def test_larger_pictures_of_later_epochs_take_longer():
    assert begun(sides=(32, 64))(10, 1.0) == pytest.approx(40)


def test_a_slow_first_batch_does_not_count():
    take = begun(epochs=1)
    assert take(1, 300.0) == 0
    assert take(1, 1.0) == pytest.approx(8)


@pytest.mark.parametrize(("seconds", "words"), cases(__file__, "durations"))
def test_a_length_of_time_has_two_units(seconds, words):
    assert duration_in_words(seconds) == words


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
    assert lines[0] == ("epoch 1/2: 60 of 100 batches, 8.0 pictures/s, loss 2.500, 4% waiting; 2 min left of the run")
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


@pytest.fixture
def trainer_of(data, tmp_path):
    """Makes a trainer with some flags."""
    with ExitStack() as opened:

        def make(*flags):
            return opened.enter_context(closing(make_trainer(data, tmp_path / "run", *flags)))

        yield make


def lines(trainer):
    return describe_run(trainer.engine, trainer.manifest, steps_per_epoch=7, global_batch=8)


def test_gpus_are_named_with_their_memory(trainer_of, monkeypatch):
    monkeypatch.setattr(reporting, "describe_device", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (149_100_000_000, 150_100_000_000))
    engine = (trainer := trainer_of()).engine
    engine.device, engine.amp_dtype, engine.ranks = torch.device("cuda", 0), torch.float16, Ranks(num_ranks=4)
    device, *_ = lines(trainer)
    assert device == "device: 4 ranks, each on NVIDIA H200, fp16; 149.1 of 150.1 GB of its memory are free"


def test_a_run_says_where_and_how_it_trains_and_a_line_for_each_epoch(data, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("training.engine.loop.peak_memory_gb", lambda _: 12.34)
    train(command(data, tmp_path / "run", "--batch-size", 16, "--epochs", 2, "--accumulate", 2))
    written = capfd.readouterr().err
    plan = [line for line in written.splitlines() if line.startswith(("device", "data", "steps"))]
    assert plan[0].startswith("device: CPU, ")
    assert plan[0].endswith("float32")
    assert plan[1:] == [
        "data: 30 training and 3 validation pictures of 3 classes",
        "steps: 2 epochs of 1 steps, 2 in all; a step takes 32 pictures of 32 px; there are fewer: lower --batch-size",
    ]
    assert events(tmp_path / "run", "start")[0]["plan"] == plan
    epochs = [line for line in written.splitlines() if line.startswith("epoch ")]
    assert len(epochs) == 2
    assert all(" px, at most 12.3 GB of GPU memory, validation top-1 " in line for line in epochs)
    assert not {"\x1b", "━"} & set(written)
