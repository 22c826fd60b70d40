import copy
import hashlib
import os
import re
import signal
import subprocess
import threading
from contextlib import closing
from multiprocessing import forkserver

import psutil
import pytest
import timm
import torch
from torch.nn.functional import cross_entropy

from models.errors import DataError
from models.metrics import share
from models.network import PlantNetwork
from tests.training.slow_loader import SLEEP_S, SlowPictures
from tests.training.small import (
    RECIPE,
    command,
    draw,
    events,
    finish,
    losses_by_step,
    make_taxonomy,
    make_trainer,
    run_training,
    write_data,
)
from training.dataset.manifest import Manifest
from training.engine.checkpoint import read_checkpoint
from training.engine.device import amp_dtype
from training.engine.loop import Diverged, Trainer
from training.engine.stop_signal import Stopped
from training.engine.validation import Validation, validate
from training.loading.data import evaluation_loader
from training.loading.negatives import RunInput
from training.monitor.memory import OutOfMemory
from training.network_input import input_spec
from training.recipe import HardwareRecipe

STILL = ("--dropout", 0, "--randaugment-magnitude", 0, "--cutmix", 0, "--weight-decay", 0, "--ema-decay", 0)


@pytest.fixture(scope="module")
def ten_pictures(tmp_path_factory):
    """Ten training pictures and one for validation, of two classes."""
    folder, taxonomy = tmp_path_factory.mktemp("ten"), make_taxonomy(2)
    rows = []
    for number in range(11):
        draw(("gold", "crimson")[number % 2], "ellipse", number).save(folder / f"{number}.png")
        split = "train" if number < 10 else "validation"
        rows.append((f"{number}.png", taxonomy.output_keys[number % 2], split))
    return write_data(folder / "data", folder, rows, taxonomy)


def frozen_network(num_outputs=2):
    """A network with frozen norms, so that the pictures of a batch are independent."""
    torch.manual_seed(0)
    network = PlantNetwork("test_efficientnet", num_outputs)
    network.timm_model = timm.layers.freeze_batch_norm_2d(network.timm_model)
    return network


def gradients_of_steps(data, run, *flags):
    """The gradient of every optimizer step, as one vector each."""
    trainer, found = make_trainer(data, run, *STILL, *flags, network=frozen_network()), []

    def keep(optimizer, *_):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        found.append(torch.cat([parameter.grad.flatten() for parameter in parameters]))

    trainer.engine.optimizer.register_step_pre_hook(keep)
    finish(trainer)
    return found


def test_training_learns_to_tell_the_flowers_apart(data, tmp_path):
    flags = ("--epochs", 12, "--cutmix", 0, "--backbone-lr", 5e-3, "--head-lr", 5e-3, "--validate-every-epochs", 12)
    run = run_training(data, tmp_path / "run", *flags)
    losses = [loss for losses in losses_by_step(run).values() for loss in losses]
    assert sum(losses[-14:]) / 14 < 0.8 * sum(losses[:14]) / 14


def test_a_short_last_window_averages_only_its_own_batches(ten_pictures, tmp_path):
    rates = ("--epochs", 1, "--backbone-lr", 1e-12, "--head-lr", 1e-12, "--batch-size", 2)
    windows = gradients_of_steps(ten_pictures, tmp_path / "windows", *rates, "--accumulate", 2)
    batches = gradients_of_steps(ten_pictures, tmp_path / "batches", *rates)
    assert (len(windows), len(batches)) == (3, 5)
    assert (windows[2] - batches[4]).norm() < 1e-4 * batches[4].norm()


def eval_loss(network, data, run):
    recipe, manifest = command(data, run).recipe, Manifest(data)
    loader = evaluation_loader(manifest, manifest.rows_of("validation"), input_spec(recipe), recipe.data)
    network.eval()
    with torch.no_grad():
        logits, labels = (torch.cat(each) for each in zip(*((network(x), y) for x, y in loader), strict=True))
    return float(cross_entropy(logits, labels))


def test_the_moving_average_is_what_is_validated(finished_run, data):
    checkpoint = read_checkpoint(finished_run / "last.pt")
    losses = {}
    for name in ("network", "ema"):
        network = PlantNetwork("test_efficientnet", 3)
        network.load_state_dict(getattr(checkpoint, name))
        losses[name] = eval_loss(network, data, finished_run)
    validated = events(finished_run, "epoch")[-1]["validation"]["loss"]
    assert validated == pytest.approx(losses["ema"], abs=1e-5)
    assert abs(validated - losses["network"]) > 1e-4


def test_a_picture_whose_output_is_the_sixth_is_no_hit_among_the_first_five(tmp_path):
    draw("gold", "ellipse", 0).save(tmp_path / "one.png")
    taxonomy = make_taxonomy(7)
    rows = [(name, taxonomy.output_keys[at], "validation") for name, at in (("one.png", 4), ("./one.png", 5))]
    data = write_data(tmp_path / "data", tmp_path, [*rows, (".//one.png", taxonomy.output_keys[0], "train")], taxonomy)
    with closing(make_trainer(data, tmp_path / "run")) as trainer:
        trainer.engine.scores = lambda pixels: torch.arange(7.0).neg().expand(len(pixels), 7)  # outputs in their order
        found = validate(trainer.engine, Manifest(data), 0, 32)
    assert (found.top1, found.top5) == (share(0, 2), share(1, 2))


def test_a_checkpoint_in_the_middle_of_an_epoch_counts_its_pictures(ten_pictures, tmp_path):
    flags = ("--batch-size", 2, "--accumulate", 2)
    trainer = make_trainer(ten_pictures, tmp_path / "run", *flags, network=frozen_network())
    position = finish(trainer, max_steps=2)
    assert (position.epoch, position.pictures, position.step) == (0, 8, 2)
    assert read_checkpoint(tmp_path / "run" / "last.pt").position["pictures"] == 8


def test_statistics_are_estimated_for_the_moving_average_which_is_validated(ten_pictures, tmp_path):
    flags = ("--batch-size", 8, "--norms", "auto", "--ema-decay", 0.9)
    trainer = make_trainer(ten_pictures, tmp_path / "run", *flags)
    engine = trainer.engine
    assert engine.norms.reestimate
    networks = (engine.network, engine.eval_model)
    before = [copy.deepcopy(dict(network.named_buffers())) for network in networks]
    validate(engine, trainer.manifest, epoch=0, side_px=32)
    trainer.close()
    changed = [
        any(not torch.equal(value, old[name]) for name, value in network.named_buffers() if "running" in name)
        for network, old in zip(networks, before, strict=True)
    ]
    assert changed == [False, True]


def test_the_log_has_speed_size_and_validation_of_every_epoch(finished_run):
    for number, epoch in enumerate(events(finished_run, "epoch"), start=1):
        assert (epoch["epoch"], epoch["side_px"]) == (number, 32)
        assert epoch["pictures_per_s"] > 0
        assert epoch["validation"]["top1"]["num_pictures"] == 3
    assert sorted(losses_by_step(finished_run)) == list(range(1, 15))
    assert all(len(losses) == 1 for losses in losses_by_step(finished_run).values())
    assert events(finished_run, "end")[-1]["step"] == 14


def test_validation_can_skip_epochs_but_not_the_last(data, tmp_path):
    run = run_training(data, tmp_path / "run", "--epochs", 3, "--validate-every-epochs", 2)
    assert ["validation" in epoch for epoch in events(run, "epoch")] == [False, True, True]


@pytest.mark.parametrize(("losses", "best_epoch"), [((1, 1, 1, 1), 2), ((4, 3, 2, 1), 4), ((1, 2, 3, 4), 2)])
def test_the_best_checkpoint_is_that_of_the_best_validation(losses, best_epoch, ten_pictures, tmp_path, monkeypatch):
    hits, losses = (share(hits, 4) for hits in (1, 3, 2, 3)), iter(losses)
    monkeypatch.setattr(
        "training.engine.loop.validate", lambda *_, **__: Validation(next(hits), share(4, 4), next(losses))
    )
    trainer = make_trainer(ten_pictures, tmp_path / "run", "--batch-size", 10, "--epochs", 4)
    assert finish(trainer).best == 0.75
    best, last = (read_checkpoint(tmp_path / "run" / name).position for name in ("best.pt", "last.pt"))
    assert (best["epoch"], best["best"]) == (best_epoch, 0.75)  # of equal top-1 the lower loss, then the first
    assert (last["epoch"], last["best"]) == (4, 0.75)


def test_pictures_grow_as_the_recipe_says(data, tmp_path, monkeypatch):
    seen = []
    flags = ("--progressive", 0, 32, 1, 48, "--picture-px", 48, "--batch-size", 14, "--ema-decay", 0)
    trainer = make_trainer(data, tmp_path / "run", *flags)
    trainer.engine.network.register_forward_pre_hook(
        lambda module, inputs: seen.append(tuple(inputs[0].shape[2:])) if module.training else None
    )
    finish(trainer)
    assert seen == [(32, 32)] * 2 + [(48, 48)] * 2
    assert [epoch["side_px"] for epoch in events(tmp_path / "run", "epoch")] == [32, 48]


@pytest.mark.parametrize(
    ("amp", "device", "dtype"),
    [
        ("fp16", "cpu", None),
        ("bf16", "cpu", torch.bfloat16),
        ("fp16", "cuda", torch.float16),
        ("off", "cuda", None),
    ],
)
def test_precision_follows_recipe_and_device(amp, device, dtype, monkeypatch):
    monkeypatch.setattr("training.engine.device.processor_flags", lambda: {"amx_bf16"})
    assert amp_dtype(HardwareRecipe(amp=amp), torch.device(device)) == dtype


def content(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_too_many_bad_steps_end_the_run_with_a_diagnosis_and_keep_the_last_checkpoint(data, tmp_path, monkeypatch):
    run = run_training(data, tmp_path / "run", "--max-steps", 7)
    before = content(run / "last.pt")
    monkeypatch.setattr("training.engine.loop.MAX_BAD_STEPS", 1)
    with pytest.raises(Diverged, match=r"2 steps in a row.*the first layer whose output is not finite.*--clip-norm"):
        run_training(data, run, "--resume", "--backbone-lr", 1e20, "--head-lr", 1e20)
    assert content(run / "last.pt") == before
    assert events(run, "diverged")
    run_training(data, run, "--resume")
    assert read_checkpoint(run / "last.pt").position["step"] == 14


def test_a_batch_that_does_not_fit_is_one_error_with_a_size_that_fits(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", "--batch-size", 12)
    network = trainer.engine.network

    def full(_module, inputs):
        if len(inputs[0]) > 3:
            raise torch.OutOfMemoryError

    network.register_forward_pre_hook(full)
    statistics = network.state_dict()["timm_model.bn1.running_mean"].clone()
    with pytest.raises(OutOfMemory, match=r"12 pictures of 32 px; 3 fit.*--batch-size 3 --accumulate 4 keeps"):
        finish(trainer)
    assert torch.equal(network.state_dict()["timm_model.bn1.running_mean"], statistics)


def trainer_on_a_small_device(recipe, data, most_px):
    """A trainer on a device that has no room for a step with more pixels than that."""

    def full(module, inputs):
        if module.training and inputs[0].numel() > 3 * most_px:
            raise torch.OutOfMemoryError

    network = PlantNetwork("test_efficientnet", 2)
    network.register_forward_pre_hook(full)
    return Trainer(RunInput.of(recipe), Manifest(data), network, torch.device("cpu"))


@pytest.mark.parametrize(
    ("batch_size", "most_px", "times"),
    [
        (8, 4 * 32**2, 2),  # at the first step, and when the pictures grow
        (4, 4 * 32**2, 1),  # after an epoch, when the pictures grow
        (1, 48**2, 1),  # then even for one picture
    ],
)
def test_the_advice_for_too_little_memory_works(batch_size, most_px, times, ten_pictures, tmp_path):
    grows = tmp_path / "grows.toml"
    grows.write_text(RECIPE.read_text().replace("picture_px = 32", "picture_px = 64\nprogressive = [[0, 32], [1, 64]]"))
    always = ["--ema-decay", 0, "--norms", "frozen", "--weights", "imagenet"]  # which a trainer does not load
    flags = ["--batch-size", batch_size, *always]
    for _ in range(times):
        asked = command(ten_pictures, tmp_path / "run", *flags, recipe=grows)
        trainer = trainer_on_a_small_device(asked.recipe, ten_pictures, most_px)
        trainer.resume() if asked.resume else None
        with pytest.raises(OutOfMemory) as caught:
            finish(trainer)
        flags += [word for flag in re.findall(r"--[a-z-]+(?: \d+)?", str(caught.value)) for word in flag.split()]
    if "--picture-px" in flags:  # the message names no size
        flags = ["--picture-px", 48, "--batch-size", 1, "--resume", *always]
    asked = command(ten_pictures, tmp_path / "run", *flags, recipe=grows)
    trainer = trainer_on_a_small_device(asked.recipe, ten_pictures, most_px)
    assert asked.resume
    trainer.resume()
    finish(trainer)
    assert read_checkpoint(tmp_path / "run" / "last.pt").position["epoch"] == 2


def test_a_time_limit_ends_the_run_with_a_validation_and_a_checkpoint(data, tmp_path):
    position = finish(make_trainer(data, tmp_path / "run", "--epochs", 500), max_seconds=0.5)
    assert position.seconds >= 0.5
    assert position.epoch < 500
    assert "validation" in events(tmp_path / "run", "epoch")[-1]
    assert read_checkpoint(tmp_path / "run" / "last.pt").position["step"] == position.step
    again = make_trainer(data, tmp_path / "run", "--epochs", 500)
    again.resume()
    assert again.run(max_seconds=0.5) == position  # as when a scheduler starts the same command again
    assert again.run(max_seconds=position.seconds + 1e-9).step == position.step + 1
    again.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_makes_a_run_save_after_the_step(number, code, data, tmp_path):
    trainer, steps = make_trainer(data, tmp_path / "run"), []

    def send_signal(*_):
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), number)

    trainer.engine.network.register_forward_pre_hook(send_signal)
    with pytest.raises(Stopped) as stopped:
        finish(trainer)
    assert stopped.value.code == code
    assert len(steps) == 3
    assert read_checkpoint(tmp_path / "run" / "last.pt").position["step"] == 3
    assert events(tmp_path / "run", "interrupted")[-1]["step"] == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_waits_for_pictures_saves_although_its_loader_processes_get_the_signal_too(
    number, data, tmp_path, monkeypatch
):
    monkeypatch.setattr("training.loading.data.TrainingPictures", SlowPictures)
    trainer = make_trainer(data, tmp_path / "run", "--workers", 1)

    def send_to_all():
        loader_processes = psutil.Process(forkserver._forkserver._forkserver_pid).children()
        for process in (*loader_processes, psutil.Process()):
            subprocess.run(["kill", f"-{number:d}", str(process.pid)], check=True)  # sent by another process, as always

    trainer.engine.optimizer.register_step_post_hook(
        lambda *_: threading.Timer(SLEEP_S / 3, send_to_all).start() if trainer.position.step == 0 else None
    )
    with pytest.raises(Stopped):
        finish(trainer)
    position = read_checkpoint(tmp_path / "run" / "last.pt").position
    assert position["step"] == trainer.position.step >= 1


def test_sigterm_after_the_last_step_of_an_epoch_leaves_the_validation_to_the_resumed_run(data, tmp_path):
    whole = run_training(data, tmp_path / "whole", "--epochs", 1)
    trainer = make_trainer(data, tmp_path / "run", "--epochs", 1)
    trainer.engine.optimizer.register_step_post_hook(
        lambda *_: os.kill(os.getpid(), signal.SIGTERM) if trainer.position.step == 6 else None
    )
    with pytest.raises(Stopped):
        finish(trainer)
    assert not events(tmp_path / "run", "epoch")
    run_training(data, tmp_path / "run", "--epochs", 1, "--resume")
    (epoch,) = events(tmp_path / "run", "epoch")
    assert epoch["validation"]["top1"]["num_pictures"] == 3
    positions = [read_checkpoint(run / "last.pt").position for run in (tmp_path / "run", whole)]
    assert [(p["epoch"], p["pictures"], p["step"]) for p in positions] == [(1, 0, 7)] * 2


def test_weights_that_are_not_finite_are_never_saved(data, tmp_path):
    run = run_training(data, tmp_path / "run", "--max-steps", 7)
    before = content(run / "last.pt")
    # The losses are still finite when the first step of this rate has been taken.
    with pytest.raises(Diverged, match="weights"):
        run_training(data, run, "--resume", "--head-lr", 1e39, "--checkpoint-every-steps", 1)
    assert content(run / "last.pt") == before


def test_data_without_validation_pictures_is_refused_before_the_first_epoch(tmp_path):
    taxonomy = make_taxonomy(1)
    draw("gold", "ellipse", 1).save(tmp_path / "a.png")
    data = write_data(tmp_path / "data", tmp_path, [("a.png", taxonomy.output_keys[0], "train")], taxonomy)
    with pytest.raises(DataError, match="no validation pictures"):
        make_trainer(data, tmp_path / "run", network=frozen_network(1))
    assert not (tmp_path / "run").exists()
