"""A tuned batch size reaches the same loss in less time: drawn pictures, the real training step, one CPU thread."""

import time

import msgspec
import pytest
import torch
from torch.nn.functional import cross_entropy, interpolate

from models.network import PlantNetwork
from tests.training.insight.tuning.stand_in import TINY, setting
from training.engine.losses import TrainingClasses
from training.engine.step import Engine
from training.insight.tuning.launch import TimeLimits, TrialLauncher
from training.insight.tuning.proposal import propose
from training.insight.tuning.search import BatchSearch

NUM_CLASSES = 8
CLASSES = TrainingClasses(tuple(range(NUM_CLASSES)), NUM_CLASSES, (1.0,) * NUM_CLASSES)
CPU = torch.device("cpu")
TARGET = 1.2  # nats; chance is 2.08
MOST_PICTURES = 60_000
LARGEST = 256  # an eighth of an epoch of 2,048 pictures
replace = msgspec.structs.replace


def at_batch_16():
    """A recipe at batch 16 with its best rate of 1e-3, 3e-3 and 6e-3, without regularization and augmentation."""
    schedule = replace(TINY.schedule, batch_size=16, backbone_lr=3e-3, head_lr=3e-3, decay="none", epochs=100)
    return replace(
        TINY,
        network=replace(TINY.network, dropout=0.0),
        schedule=replace(schedule, ema_decay=0.0),
        augment=replace(TINY.augment, cutmix=0.0),
        loss=replace(TINY.loss, label_smoothing=0.0),
    )


def pictures(count, draws):
    """One blurred pattern per class under strong noise and a color cast, so that gradients are noisy."""
    labels = torch.randint(0, NUM_CLASSES, (count,), generator=draws)
    patterns = torch.randn(NUM_CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(99))
    clear = interpolate(patterns, size=32, mode="bilinear")[labels]
    noise = 60 * torch.randn(count, 3, 32, 32, generator=draws) + 40 * torch.randn(count, 3, 1, 1, generator=draws)
    return (128 + 5 * clear + noise).clamp(0, 255).to(torch.uint8), labels


def seconds_to_target(recipe, seed):
    """CPU time of the training steps until the validation loss is low enough, without drawing and validation."""
    torch.manual_seed(seed)
    network = PlantNetwork("test_efficientnet", NUM_CLASSES)
    recipe = replace(recipe, run=replace(recipe.run, seed=seed))
    engine = Engine(recipe, network, CPU, CLASSES, steps_per_epoch=1000)
    judged, labels = pictures(256, torch.Generator().manual_seed(1000))
    draws, seconds, taken = torch.Generator().manual_seed(seed), 0.0, 0
    for step in range(MOST_PICTURES // recipe.schedule.batch_size):
        batch = pictures(recipe.schedule.batch_size, draws)
        started = time.process_time()
        engine.micro_step(*batch, step=step)
        engine.read()
        seconds += time.process_time() - started
        taken += len(batch[1])
        if taken % 256 < len(batch[1]):
            engine.network.eval()
            with torch.no_grad():
                loss = cross_entropy(engine.network(engine.normalized(judged)), labels)
            engine.train_mode()
            if loss < TARGET:
                return seconds
    pytest.fail(f"batch {recipe.schedule.batch_size} did not come to {TARGET} in {MOST_PICTURES} pictures")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_tuned_setting_reaches_a_loss_sooner_than_batch_16():
    recipe = at_batch_16()
    launch = TrialLauncher(recipe, CLASSES, 0, TimeLimits(budget_s=3.0))
    search = BatchSearch(lambda size: launch(setting(size)), LARGEST)
    chosen = search.run()
    found = propose(recipe, chosen, search.trials, device="CPU", num_ranks=1)
    rates = {"backbone_lr": found.backbone_lr, "head_lr": found.head_lr}
    tuned = replace(recipe, schedule=replace(recipe.schedule, batch_size=found.setting.batch_size, **rates))
    pairs = [(seconds_to_target(recipe, seed), seconds_to_target(tuned, seed)) for seed in range(3)]
    for trial in search.trials:
        print(f"batch {trial.setting.batch_size}: {trial.pictures_per_s:.0f} pictures/s {trial.outcome}")
    print(f"batch 16 and batch {found.setting.batch_size} at {found.head_lr:g}, s to a loss of {TARGET}: {pairs}")
    assert found.setting.batch_size > 16
    assert all(after < before for before, after in pairs)
