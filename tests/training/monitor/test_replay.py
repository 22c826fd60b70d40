import pytest
import torch

from models.network import PlantNetwork
from tests.training.small import events, losses_by_step, make_trainer
from training.engine.step import Engine
from training.monitor.monitor import Monitor

BATCH = 4


@pytest.fixture
def trainer(data, tmp_path):
    made = make_trainer(data, tmp_path / "run", PlantNetwork("test_efficientnet", 3), "--batch-size", BATCH)
    yield made
    made.close()


def all_tensors(trainer):
    """Copies of everything that training changes."""
    checkpoint = trainer.checkpoints.checkpoint(trainer.position)
    moments = [value for state in checkpoint.optimizer["state"].values() for value in state.values()]
    tensors = [*checkpoint.network.values(), *checkpoint.ema.values(), *moments, torch.get_rng_state()]
    return [value.clone() for value in tensors if isinstance(value, torch.Tensor)]


def test_a_replay_does_not_change_the_run(trainer):
    trainer.run(max_steps=2)
    batch = next(iter(trainer.loader))
    before = all_tensors(trainer)
    trainer.monitor.begin_epoch()
    trainer.monitor.keep_batch(*batch)
    trainer.monitor.end_epoch()
    trainer.monitor.measure_ceiling(trainer.engine)
    after = all_tensors(trainer)
    assert len(before) == len(after) > 100
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(parameter.grad is None for parameter in trainer.engine.network.parameters())
    assert trainer.engine.read().losses == []
    assert trainer.engine.clock is trainer.monitor.clock


def test_a_run_with_replays_has_the_losses_of_a_run_without(data, tmp_path, monkeypatch):
    losses = []
    for replays in (True, False):
        if not replays:
            monkeypatch.setattr(Monitor, "measure_ceiling", lambda *_, **__: None)
        torch.manual_seed(0)
        trainer = make_trainer(data, tmp_path / str(replays), PlantNetwork("test_efficientnet", 3))
        trainer.run()
        trainer.close()
        losses.append(losses_by_step(tmp_path / str(replays)))
    assert len(losses[0]) == 14
    assert losses[0] == losses[1]


def test_a_picture_size_is_replayed_once(trainer, monkeypatch):
    taken = []
    real = Engine.micro_step

    def take(self, pixels, labels, *, step, index, window):
        taken.append((pixels.shape[-1], index + 1 < window))
        real(self, pixels, labels, step=step, index=index, window=window)

    monkeypatch.setattr(Engine, "micro_step", take)
    trainer.run()
    replayed = [number for number, (_, is_replay) in enumerate(taken) if is_replay]
    assert replayed
    assert replayed == list(range(replayed[0], replayed[0] + len(replayed)))  # after the first epoch, not the second


def test_every_epoch_logs_where_its_time_went(trainer, tmp_path):
    trainer.run()
    epochs = events(tmp_path / "run", "epoch")
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    for epoch in epochs:
        stages = epoch["use"]["stages"]
        assert {"wait", "copy", "forward", "backward", "optimizer"} <= set(stages)
        assert 0 < sum(stages.values()) <= epoch["use"]["seconds"] * 1.001
        assert epoch["verdict"]["kind"]
        assert epoch["verdict"]["gain"] >= 1
    assert epochs[1]["use"]["pictures"] == 28
