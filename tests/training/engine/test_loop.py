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
from training.loading.negatives import RunInput
from training.monitor.memory import OutOfMemory
from training.recipe import HardwareRecipe


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


def test_a_picture_whose_output_is_the_sixth_is_no_hit_among_the_first_five(tmp_path):
    draw("gold", "ellipse", 0).save(tmp_path / "one.png")
    taxonomy = make_taxonomy(7)
    rows = [(name, taxonomy.output_keys[at], "validation") for name, at in (("one.png", 4), ("./one.png", 5))]
    data = write_data(tmp_path / "data", tmp_path, [*rows, (".//one.png", taxonomy.output_keys[0], "train")], taxonomy)
    with closing(make_trainer(data, tmp_path / "run")) as trainer:
        trainer.engine.scores = lambda pixels: torch.arange(7.0).neg().expand(len(pixels), 7)  # outputs in their order
        found = validate(trainer.engine, Manifest(data), 0, 32)
    assert (found.top1, found.top5) == (share(0, 2), share(1, 2))


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


def test_gradients_or_weights_that_are_not_finite_end_the_run_and_are_never_saved(data, tmp_path, monkeypatch):
    # Step 7 ends an epoch, which is saved though it is not validated.
    run = run_training(data, tmp_path / "run", "--max-steps", 7, "--validate-every-epochs", 2)
    before = (run / "last.pt").read_bytes()
    # The losses are still finite when the first step of this rate has been taken.
    with pytest.raises(Diverged, match="weights"):
        run_training(data, run, "--resume", "--head-lr", 1e39, "--checkpoint-every-steps", 1)
    monkeypatch.setattr("training.engine.loop.MAX_BAD_STEPS", 1)
    with pytest.raises(Diverged, match=r"2 steps in a row.*the first layer whose output is not finite.*--clip-norm"):
        run_training(data, run, "--resume", "--backbone-lr", 1e20, "--head-lr", 1e20)
    assert (run / "last.pt").read_bytes() == before
    assert len(events(run, "diverged")) == 2
    run_training(data, run, "--resume")
    assert read_checkpoint(run / "last.pt").position["step"] == 14


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


def test_ctrl_c_makes_a_run_save_after_the_step(data, tmp_path):
    trainer, steps = make_trainer(data, tmp_path / "run"), []

    def send_signal(*_):
        steps.append(1)
        if len(steps) == 7:  # the last one of the epoch, whose validation is left to the resumed run
            os.kill(os.getpid(), signal.SIGINT)

    trainer.engine.network.register_forward_pre_hook(send_signal)
    with pytest.raises(Stopped) as stopped:
        finish(trainer)
    assert (stopped.value.code, len(steps)) == (130, 7)
    assert read_checkpoint(tmp_path / "run" / "last.pt").position["step"] == 7
    assert [event["event"] for event in events(tmp_path / "run", "epoch", "interrupted")] == ["interrupted"]


def test_a_run_that_waits_for_pictures_saves_although_its_loader_processes_get_the_signal_too(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr("training.loading.data.PictureDataset", SlowPictures)
    trainer = make_trainer(data, tmp_path / "run", "--workers", 1)

    def send_to_all():
        loader_processes = psutil.Process(forkserver._forkserver._forkserver_pid).children()
        for process in (*loader_processes, psutil.Process()):
            subprocess.run(["kill", "-TERM", str(process.pid)], check=True)  # sent by another process, as always

    trainer.engine.optimizer.register_step_post_hook(
        lambda *_: threading.Timer(SLEEP_S / 3, send_to_all).start() if trainer.position.step == 0 else None
    )
    with pytest.raises(Stopped) as stopped:
        finish(trainer)
    assert stopped.value.code == 75
    position = read_checkpoint(tmp_path / "run" / "last.pt").position
    assert position["step"] == trainer.position.step >= 1


def test_data_without_validation_pictures_is_refused_before_the_first_epoch(tmp_path):
    taxonomy = make_taxonomy(1)
    draw("gold", "ellipse", 1).save(tmp_path / "a.png")
    data = write_data(tmp_path / "data", tmp_path, [("a.png", taxonomy.output_keys[0], "train")], taxonomy)
    with pytest.raises(DataError, match="no validation pictures"):
        make_trainer(data, tmp_path / "run", network=frozen_network(1))
    assert not (tmp_path / "run").exists()
