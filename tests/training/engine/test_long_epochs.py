"""Checkpoints by time, validations within epochs, and early stopping."""

import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import training.engine.checkpointing
import training.engine.loop
from models.metrics import share
from tests.training.small import events, losses_by_step, run_training
from training.engine.checkpoint import Position, read_checkpoint
from training.engine.validation import Validation

OFTEN = ("--validate-every-steps", 2)  # an epoch has 7 steps
SAVED = {"network", "ema", "optimizer", "scheduler", "position"}


def require_equal(one, other):
    """Asserts that two values of a checkpoint are equal, bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds"}:
            require_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            require_equal(left, right)
    else:
        assert one == other


def require_same_run(run, whole):
    """Asserts that two runs took the same steps, bit for bit, and ended with the same checkpoint."""
    assert losses_by_step(run) == losses_by_step(whole)
    one, other = (read_checkpoint(folder / "last.pt") for folder in (run, whole))
    for part in SAVED:
        require_equal(getattr(one, part), getattr(other, part))


def positions(run):
    """Steps of the checkpoints that a run wrote."""
    return [event["step"] for event in events(run, "checkpoint")]


def validated(run):
    return [event["step"] for event in events(run, "validation")]


@pytest.fixture
def validate_as(monkeypatch):
    """Makes validations find the given top-1s in turn, in 1/100; an exception is raised."""

    def replace(*results):
        left = iter(results)

        def validate(*_):
            result = next(left)
            if isinstance(result, BaseException):
                raise result
            return Validation(share(result, 100), share(100, 100), 1.0)

        monkeypatch.setattr(training.engine.loop, "validate", validate)

    return replace


def test_a_checkpoint_is_written_when_the_minutes_since_the_last_one_are_over(data, tmp_path, monkeypatch):
    seconds = iter(range(0, 10**6, 250))  # each look at the clock, once a step and once a checkpoint
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(training.engine.checkpointing, "time", clock)
    run = run_training(data, tmp_path / "run", "--epochs", 1)
    assert positions(run) == [3, 6, 7, 7]  # before the validation of the epoch and after it


@pytest.mark.parametrize("minutes", [0, 1e9])
def test_without_a_time_that_is_over_only_the_end_of_the_epoch_is_saved(minutes, data, tmp_path):
    run = run_training(data, tmp_path / "run", "--epochs", 1, "--checkpoint-every-minutes", minutes)
    assert positions(run) == [7, 7]


def test_checkpoints_by_time_and_by_steps_may_be_combined(data, tmp_path):
    flags = ("--epochs", 1, "--checkpoint-every-minutes", 1e9, "--checkpoint-every-steps", 3)
    assert positions(run_training(data, tmp_path / "run", *flags)) == [3, 6, 7, 7]


def test_a_crash_after_a_checkpoint_by_time_is_resumed_bit_for_bit(data, finished_run, tmp_path, monkeypatch):
    steps, original = [], torch.optim.AdamW.step

    def crash(self, *_, **__):
        steps.append(1)
        if len(steps) == 6:
            raise KeyboardInterrupt
        return original(self)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.AdamW, "step", crash)
        with pytest.raises(KeyboardInterrupt):
            run_training(data, tmp_path / "run", "--checkpoint-every-minutes", 1e-9)
    assert positions(tmp_path / "run") == [1, 2, 3, 4, 5]
    run_training(data, tmp_path / "run", "--resume")
    require_same_run(tmp_path / "run", finished_run)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--ema-decay", 0), marks=pytest.mark.slow),
        pytest.param(("--head-only-epochs", 1), marks=pytest.mark.slow),
        # Statistics are estimated again at each validation.
        pytest.param(("--batch-size", 8, "--norms", "auto", "--ema-decay", 0), marks=pytest.mark.slow),
        ("--batch-size", 8, "--norms", "auto", "--ema-decay", 0, "--head-only-epochs", 1),
        ("--norms", "frozen", "--weights", "finished", "--ema-decay", 0),
    ],
)
def test_validations_within_epochs_change_no_step(flags, data, finished_run, tmp_path):
    flags = ["--epochs", 1, *(finished_run / "last.pt" if flag == "finished" else flag for flag in flags)]
    run = run_training(data, tmp_path / "run", *flags, *OFTEN)
    assert validated(run)
    whole = run_training(data, tmp_path / "whole", *flags)
    assert losses_by_step(run) == losses_by_step(whole)
    one, other = (read_checkpoint(folder / "last.pt").optimizer for folder in (run, whole))
    require_equal(one, other)


def test_the_best_checkpoint_may_be_one_within_an_epoch(data, tmp_path, validate_as):
    validate_as(20, 90, 30, 90, 50)
    run = run_training(data, tmp_path / "run", *OFTEN, "--epochs", 1, "--validate-every-epochs", 5)
    assert validated(run) == [2, 4, 6]
    best, last = (read_checkpoint(run / name).position for name in ("best.pt", "last.pt"))
    assert (best["step"], best["best"], best["not_better"]) == (4, 0.9, 0)
    assert (last["step"], last["best"], last["not_better"]) == (7, 0.9, 2)  # the first of two equal ones stays
    assert [event["validation"]["top1"]["value"] for event in events(run, "validation")] == [0.2, 0.9, 0.3]


@pytest.mark.parametrize("killed", [2, 4])  # within an epoch, and at its end
@pytest.mark.slow
def test_a_run_killed_in_a_validation_begins_with_it_when_it_is_resumed(killed, data, tmp_path, validate_as):
    found = [20, 90, 30, 40, 95, 10, 20, 30]
    validate_as(*found)
    whole = run_training(data, tmp_path / "whole", *OFTEN)
    validate_as(*found[: killed - 1], KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_training(data, tmp_path / "run", *OFTEN)
    validate_as(*found[killed - 1 :])
    run_training(data, tmp_path / "run", *OFTEN, "--resume")
    assert validated(tmp_path / "run") == validated(whole) == [2, 4, 6, 8, 10, 12]
    require_same_run(tmp_path / "run", whole)
    require_equal(*(read_checkpoint(folder / "best.pt").position for folder in (tmp_path / "run", whole)))


def test_a_run_stopped_where_a_validation_is_due_resumes_bit_for_bit(data, tmp_path):
    whole = run_training(data, tmp_path / "whole", *OFTEN, "--ema-decay", 0)
    run = run_training(data, tmp_path / "run", *OFTEN, "--ema-decay", 0, "--max-steps", 4)
    assert validated(run) == [2]
    run_training(data, run, *OFTEN, "--ema-decay", 0, "--resume")
    assert validated(run) == validated(whole)
    require_same_run(run, whole)


@pytest.mark.parametrize(("flags", "steps"), [((), 28), (OFTEN, 7)])
def test_a_run_ends_when_its_validations_stop_getting_better(flags, steps, data, tmp_path, validate_as):
    flags = (*flags, "--epochs", 9, "--patience", 3)
    validate_as(50, 40, 50, 30)
    run = run_training(data, tmp_path / "run", *flags)
    position = read_checkpoint(run / "last.pt").position
    assert (position["step"], position["not_better"], position["best"]) == (steps, 3, 0.5)
    assert events(run, "end")[-1]["step"] == steps
    assert any("3 validations in a row were not better than 50.0%" in event["note"] for event in events(run, "note"))
    run_training(data, run, *flags, "--resume")  # it takes no step and validates nothing
    require_equal(read_checkpoint(run / "last.pt").position, position)
    validate_as(60)
    run_training(data, run, *flags[:-1], 4, "--resume", "--max-steps", 1)
    assert read_checkpoint(run / "last.pt").position["step"] == steps + 1


def test_a_run_whose_last_validation_was_killed_ends_with_it(data, tmp_path, validate_as):
    flags = (*OFTEN, "--patience", 1)
    validate_as(50, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_training(data, tmp_path / "run", *flags)
    validate_as(40)
    run_training(data, tmp_path / "run", *flags, "--resume")
    assert read_checkpoint(tmp_path / "run" / "last.pt").position["step"] == 4


def test_an_epoch_without_a_batch_of_this_process_took_no_time(data, tmp_path, validate_as):
    validate_as(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_training(data, tmp_path / "run", "--epochs", 1)
    validate_as(50)
    run_training(data, tmp_path / "run", "--epochs", 1, "--resume")
    (epoch,) = events(tmp_path / "run", "epoch")
    assert (epoch["pictures_per_s"], epoch["use"]["pictures"], epoch["use"]["start_s"]) == (0, 0, 0)


@pytest.mark.slow
def test_validations_do_not_count_as_training_time(data, tmp_path, monkeypatch):
    def validate(*_):
        time.sleep(0.4)
        return Validation(share(1, 2), share(1, 2), 1.0)

    monkeypatch.setattr(training.engine.loop, "validate", validate)
    began = time.perf_counter()
    run = run_training(data, tmp_path / "run", "--epochs", 1, *OFTEN)
    seconds = time.perf_counter() - began - 4 * 0.4
    (epoch,) = events(run, "epoch")
    assert len(validated(run)) == 3
    assert max(epoch["seconds"], epoch["use"]["seconds"]) <= seconds
    assert read_checkpoint(run / "last.pt").position["seconds"] <= seconds


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1))
def test_a_position_knows_the_best_validation_and_how_many_came_after_it(found):
    position = Position(step=7)
    for hits, loss in found:
        position = position.validated_with(hits / 3, loss)
    best = max(found, key=lambda each: (each[0], -each[1]))  # of equal top-1 the lower loss, of equal ones the first
    assert (position.best, position.best_loss) == (best[0] / 3, best[1])
    assert position.not_better == len(found) - 1 - found.index(best)
    assert position.validated == position.step == 7
