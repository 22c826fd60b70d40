"""When a run saves, and how it continues: after a kill in a step or a validation, and with other processes."""

from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import training.engine.checkpointing
import training.engine.loop
from models.errors import CheckpointError
from models.metrics import share
from tests.training.small import (
    batches_of,
    crash_at_step,
    draw,
    events,
    finish,
    losses_by_step,
    make_taxonomy,
    make_trainer,
    run_training,
    write_data,
)
from training.engine.checkpoint import Position, read_checkpoint
from training.engine.validation import Validation

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


def test_checkpoints_by_steps_come_beside_those_at_the_end(data, tmp_path):
    flags = ("--epochs", 1, "--checkpoint-every-steps", 3)
    assert positions(run_training(data, tmp_path / "run", *flags)) == [3, 6, 7, 7]


def test_a_crash_after_a_checkpoint_by_time_is_resumed_bit_for_bit(data, finished_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, crash_at_step(6):
        patched.setattr(training.engine.checkpointing, "EVERY_S", 0.0)
        run_training(data, tmp_path / "run")
    assert positions(tmp_path / "run") == [1, 2, 3, 4, 5]
    run_training(data, tmp_path / "run", "--resume")
    require_same_run(tmp_path / "run", finished_run)


def test_a_run_killed_in_a_validation_begins_with_it_when_it_is_resumed(data, tmp_path, validate_as):
    validate_as(20, 90)
    whole = run_training(data, tmp_path / "whole")
    validate_as(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_training(data, tmp_path / "run")
    validate_as(20, 90)
    run_training(data, tmp_path / "run", "--resume")
    require_same_run(tmp_path / "run", whole)
    require_equal(*(read_checkpoint(folder / "best.pt").position for folder in (tmp_path / "run", whole)))


def test_a_position_inside_a_batch_of_the_resumed_run_is_refused(data, tmp_path, validate_as):
    validate_as(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):  # after 15 batches of two, the last alone in its step
        run_training(data, tmp_path / "run", "--epochs", 1, "--batch-size", 2, "--accumulate", 2)
    with pytest.raises(CheckpointError, match=r"position is inside a batch.*got 30 pictures.*multiple of 4"):
        run_training(data, tmp_path / "run", "--epochs", 1, "--resume")


def test_scaled_rates_are_resumed_with_as_many_ranks_alone(data, tmp_path):
    run = run_training(data, tmp_path / "run", "--scale-lr", "--batch-size", 4, "--max-steps", 1)
    run_training(data, run, "--scale-lr", "--batch-size", 4, "--max-steps", 2, "--resume")
    for path in run.glob("*.pt"):  # as two ranks with half of the pictures each would have written it
        content = torch.load(path, weights_only=True)
        content["recipe"]["schedule"]["batch_size"] = 2
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"number of ranks with scale_lr.*got 1.*2"):
        run_training(data, run, "--scale-lr", "--batch-size", 4, "--resume")


def test_an_epoch_without_a_batch_of_this_process_took_no_time(data, tmp_path, validate_as):
    validate_as(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_training(data, tmp_path / "run", "--epochs", 1)
    validate_as(50)
    run_training(data, tmp_path / "run", "--epochs", 1, "--resume")
    (epoch,) = events(tmp_path / "run", "epoch")
    assert (epoch["pictures_per_s"], epoch["use"]["pictures"], epoch["use"]["start_s"]) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1))
def test_a_position_knows_the_best_validation_(found):
    position = Position(step=7)
    for hits, loss in found:
        position, _ = position.validated_with(hits / 3, loss)
    best = max(found, key=lambda each: (each[0], -each[1]))  # of equal top-1 the lower loss, of equal ones the first
    assert (position.best, position.best_loss) == (best[0] / 3, best[1])
    assert position.validated == position.step == 7


NUM_PICTURES = 24  # each of its own class, so that the label identifies the picture
COLORS = ("crimson", "gold", "royalblue")


class Recorded:
    """A loader that records the pictures it gives."""

    def __init__(self, loader):
        self.loader, self.pictures = loader, []

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pixels, labels in self.loader:
            self.pictures += labels.tolist()
            yield pixels, labels


@pytest.fixture(scope="module")
def one_picture_a_class(tmp_path_factory):
    folder, taxonomy = tmp_path_factory.mktemp("elsewhere"), make_taxonomy(NUM_PICTURES)
    rows = [("seen.png", taxonomy.output_keys[0], "validation")]
    draw("white", "ellipse", 99).save(folder / "seen.png")
    for number, key in enumerate(taxonomy.output_keys):
        draw(COLORS[number % 3], "ellipse", number).save(folder / f"{number}.png")
        rows.append((f"{number}.png", key, "train"))
    return write_data(folder / "data", folder, rows, taxonomy)


def half_an_epoch(data, run):
    """Trains 3 of 6 batches on one rank; returns the saved position and the pictures that were trained on."""
    trainer = make_trainer(data, run, "--workers", 2)
    trainer.loader = recorded = Recorded(trainer.loader)
    finish(trainer, max_steps=3)
    return msgspec.convert(read_checkpoint(run / "last.pt").position, Position), recorded.pictures


def load(data, position, *flags, rank=0, num_ranks=1):
    """Loads the rest of an epoch on one rank; returns label -> pixels, and the batch sizes."""
    left = {"epoch": position.epoch, "first_picture": position.pictures}
    loaded = batches_of(data, *flags, **left, rank=rank, num_ranks=num_ranks)
    pictures = [(int(label), pixels) for batch in loaded for pixels, label in zip(*batch, strict=True)]
    assert len(dict(pictures)) == len(pictures)
    return dict(pictures), [len(labels) for _, labels in loaded]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning")  # on two cores
def test_two_ranks_resume_with_exactly_the_pictures_that_one_rank_left(one_picture_a_class, tmp_path):
    position, trained = half_an_epoch(one_picture_a_class, tmp_path / "run")
    assert (position.epoch, position.pictures, len(trained)) == (0, 12, 12)

    flags = ("--workers", 3, "--batch-size", 3)
    ranks = [load(one_picture_a_class, position, *flags, rank=rank, num_ranks=2) for rank in range(2)]
    assert [sizes for _, sizes in ranks] == [[3, 3]] * 2
    seen = [*trained, *chain.from_iterable(pictures for pictures, _ in ranks)]
    assert sorted(seen) == list(range(NUM_PICTURES))

    uninterrupted, _ = load(one_picture_a_class, Position(), "--workers", 0)
    for pictures, _ in ranks:
        assert all(torch.equal(pixels, uninterrupted[label]) for label, pixels in pictures.items())
