"""When a run saves, and how it continues, wherever it was stopped and as often as it was."""

import os
import signal
from contextlib import ExitStack, suppress
from itertools import count, pairwise
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import training.engine.checkpointing
import training.engine.loop
from models.errors import CheckpointError
from tests.training.small import events, losses_by_step, run_training, write_things
from training.engine.checkpoint import Position, read_checkpoint
from training.engine.stop_signal import Stopped

SAVED = ("network", "ema", "optimizer", "scheduler", "position", "plant_output", "initial_weights")


def require_equal(one, other, path="checkpoint"):
    """Asserts that two values of a checkpoint are equal, bit for bit."""
    if isinstance(one, dict | list):
        parts = one if isinstance(one, dict) else range(len(one))
        assert len(one) == len(other), path
        for part in parts:
            require_equal(one[part], other[part], f"{path}/{part}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    else:
        assert one == other or path.endswith("/seconds"), path


def require_same_run(run, whole):
    """Asserts that two runs took the same steps, bit for bit, and ended with the same checkpoint."""
    assert losses_by_step(run) == losses_by_step(whole)
    for kind, figures in (("epoch", "validation"), ("plant_output", "loss")):
        assert [each[figures] for each in events(run, kind)[-2:]] == [
            each[figures] for each in events(whole, kind)[-2:]
        ]
    one, other = (read_checkpoint(folder / "last.pt") for folder in (run, whole))
    for part in SAVED:
        require_equal(getattr(one, part), getattr(other, part), part)


def crash(*_):
    raise KeyboardInterrupt


def tear(_content, stream):
    stream.write(b"half a file")
    raise OSError(28, "No space left on device")


def after(number, act, function):
    """A function that acts instead of its call of this number, counted from 1."""
    calls = count(1)
    return lambda *given, **options: act(*given) if next(calls) == number else function(*given, **options)


def signaled(step):
    """A step of the optimizer in which the process is told to stop."""

    def act(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(*given)

    return act


STOPS = {
    "in a step": (torch.optim.AdamW, "step", crash),
    "after a step": (torch.optim.AdamW, "step", signaled(torch.optim.AdamW.step)),
    "in a validation": (training.engine.loop, "validate", crash),
    "as it writes": (torch, "save", tear),
}


def train_until(data, run, flags, kind, number):
    """Continues a run until it is stopped in this way, at the place of this number, or to its end."""
    where, name, act = STOPS[kind]
    with ExitStack() as stopped:
        stopped.enter_context(suppress(KeyboardInterrupt, Stopped, OSError))
        stopped.enter_context(patch.object(where, name, after(number, act, getattr(where, name))))
        run_training(data, run, *flags, "--auto-resume")


@pytest.fixture(scope="module")
def wholes(data, tmp_path_factory):
    """The flags of three kinds of runs, and each run uninterrupted."""
    folder = tmp_path_factory.mktemp("whole")
    lists = ("--negatives", write_things(folder / "things"), "--unknown", write_things(folder / "others", 5, first=50))
    kinds = {
        "plain": (),
        "windows": ("--accumulate", 2, "--warmup-epochs", 0.5, "--ema-decay", 0),
        "of no class": lists,
    }
    every = {name: ("--checkpoint-every-steps", 2, *flags) for name, flags in kinds.items()}
    return {name: (flags, run_training(data, folder / name, *flags)) for name, flags in every.items()}


@example("plain", [("in a step", 4), ("in a validation", 1), ("after a step", 7)])
@example("windows", [("as it writes", 2), ("after a step", 3), ("in a validation", 1)])
@example("of no class", [("after a step", 7), ("as it writes", 3), ("in a step", 3)])
@given(
    st.sampled_from(["plain", "windows", "of no class"]),
    st.lists(st.tuples(st.sampled_from(sorted(STOPS)), st.integers(1, 8)), max_size=3),
)
@settings(max_examples=2)
def test_a_run_that_is_stopped_anywhere_takes_the_steps_of_an_uninterrupted_one(
    data, wholes, tmp_path_factory, kind, stops
):
    run, (flags, whole) = tmp_path_factory.mktemp("stopped"), wholes[kind]
    for stop in stops:
        train_until(data, run, flags, *stop)
    run_training(data, run, *flags, "--auto-resume")
    require_same_run(run, whole)
    log = pairwise([{"step": 0}, *events(run, "start", "checkpoint")])
    starts = [event["step"] == before["step"] for before, event in log if event["event"] == "start"]
    assert starts == [True] * (len(stops) + 1)  # each at the step that was saved last


def test_a_checkpoint_is_written_when_the_minutes_since_the_last_one_are_over(data, tmp_path, monkeypatch):
    seconds = iter(range(0, 10**6, 250))  # each look at the clock, once a step and once a checkpoint
    monkeypatch.setattr(training.engine.checkpointing, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    run = run_training(data, tmp_path / "run", "--epochs", 1)
    saved = [event["step"] for event in events(run, "checkpoint")]
    assert saved == [3, 6, 7, 7]  # before the validation of the epoch and after it


def test_a_position_inside_a_batch_of_the_resumed_run_is_refused(data, tmp_path):
    flags = ("--epochs", 1, "--batch-size", 2, "--accumulate", 2)
    train_until(
        data, tmp_path / "run", flags, "in a validation", 1
    )  # after 15 batches of two, the last alone in its step
    with pytest.raises(CheckpointError, match=r"position is inside a batch.*got 30 pictures.*multiple of 4"):
        run_training(data, tmp_path / "run", "--epochs", 1, "--resume")
    run = run_training(data, tmp_path / "run", *flags, "--resume")
    (epoch,) = events(run, "epoch")  # of which this process trained on no picture
    assert (epoch["pictures_per_s"], epoch["use"]["pictures"], epoch["use"]["start_s"]) == (0, 0, 0)


def test_scaled_rates_are_resumed_with_as_many_ranks_alone(data, tmp_path):
    run = run_training(data, tmp_path / "run", "--scale-lr", "--batch-size", 4, "--max-steps", 1)
    run_training(data, run, "--scale-lr", "--batch-size", 4, "--max-steps", 2, "--resume")
    for path in run.glob("*.pt"):  # as two ranks with half of the pictures each would have written it
        content = torch.load(path, weights_only=True)
        content["recipe"]["schedule"]["batch_size"] = 2
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"number of ranks with scale_lr.*got 1.*2"):
        run_training(data, run, "--scale-lr", "--batch-size", 4, "--resume")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1))
def test_a_position_knows_the_best_validation_(found):
    position = Position(step=7)
    for hits, loss in found:
        position, is_best = position.validated_with(hits / 3, loss)
    best = max(found, key=lambda each: (each[0], -each[1]))  # of equal top-1 the lower loss, of equal ones the first
    assert (position.best, position.best_loss) == (best[0] / 3, best[1])
    assert is_best == (best not in found[:-1] and best == found[-1])
    assert position.validated == position.step == 7
