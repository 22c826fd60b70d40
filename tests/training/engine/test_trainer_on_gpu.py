"""Whole runs through `Trainer` in half precision on a GPU: the first tests to run on a machine that has one.

    python -m pytest -m gpu tests/training

Each also runs on the CPU, in float32 or bf16, so that the tests themselves are tested where there is no GPU.
"""

import re

import pytest
import torch

from models.network import PlantNetwork
from tests.training.small import events, finish, make_trainer, require_same_steps, run_training
from training.dataset.manifest import Manifest
from training.engine.checkpoint import read_checkpoint
from training.engine.validation import validate
from training.loading.data import EVALUATION_BATCH
from training.monitor.memory import OutOfMemory

SETTINGS = [
    pytest.param(("cuda", "fp16"), marks=pytest.mark.gpu, id="GPU fp16"),
    pytest.param(("cuda", "bf16"), marks=pytest.mark.gpu, id="GPU bf16"),
    pytest.param(("cpu", "off"), marks=pytest.mark.slow, id="CPU float32"),
    pytest.param(("cpu", "bf16"), marks=pytest.mark.slow, id="CPU bf16"),
]
NAME, NUM_OUTPUTS, PICTURE_GB = "test_efficientnet", 3, 0.25


@pytest.fixture(params=SETTINGS)
def setting(request, monkeypatch):
    """Flags of a device and a precision; kernels are chosen so that equal steps give equal losses."""
    device, amp = request.param
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield ("--device", device, "--amp", amp, "--no-cudnn-benchmark")
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def is_half(setting):
    return "fp16" in setting


def trainer_for(data, run, setting, *flags):
    torch.manual_seed(1)
    network = PlantNetwork(NAME, NUM_OUTPUTS, dropout=0.2, drop_path=0.1)
    return make_trainer(data, run, *setting, *flags, network=network)


def tensors_of(value):
    """All tensors of a nested state, on the CPU, in order."""
    if isinstance(value, torch.Tensor):
        return [value.cpu()]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def test_a_run_has_the_losses_of_full_precision_validates_and_saves(setting, data, tmp_path):
    still = ("--backbone-lr", 1e-12, "--head-lr", 1e-12, "--dropout", 0)
    run = run_training(data, tmp_path / "run", *setting, *still, "--workers", 2 if "cuda" in setting else 0)
    full = run_training(data, tmp_path / "full", "--device", "cpu", "--amp", "off", *still)
    require_same_steps(run, full, rel=0.03)
    for found, expected in zip(events(run, "epoch"), events(full, "epoch"), strict=True):
        assert found["validation"]["loss"] == pytest.approx(expected["validation"]["loss"], rel=0.03)
        assert found["validation"]["top1"]["num_pictures"] == 3
        assert (found["memory_gb"] is not None) == ("cuda" in setting)
    checkpoint = read_checkpoint(run / "last.pt")
    assert checkpoint.position["epoch"] == 2
    assert all(value.dtype != torch.float16 for value in tensors_of(checkpoint.network))
    assert bool(checkpoint.scaler) == is_half(setting)
    scales = {event["scale"] for event in events(run, "losses")}
    assert min(scales) > 1 if is_half(setting) else scales == {1.0}
    assert checkpoint.trained_on.startswith(torch.cuda.get_device_name() if "cuda" in setting else "CPU, ")


def test_a_run_resumes_exactly(setting, data, tmp_path):
    flags = ("--batch-size", 4, "--workers", 0)
    whole = run_training(data, tmp_path / "whole", *setting, *flags)
    run = run_training(data, tmp_path / "run", *setting, *flags, "--max-steps", 5)
    saved = read_checkpoint(run / "last.pt")
    trainer = trainer_for(data, run, setting, *flags)
    trainer.resume()
    again = trainer.checkpoints.checkpoint(trainer.position)
    for part in ("network", "ema", "optimizer", "scheduler", "scaler"):
        before, after = (tensors_of(getattr(each, part)) for each in (saved, again))
        assert len(before) == len(after)
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True)), part
    assert again.scaler == saved.scaler
    finish(trainer)
    require_same_steps(run, whole, rel=1e-3)


def test_the_last_batch_of_a_validation_has_the_size_of_the_others(setting, data, tmp_path):
    trainer, sizes = trainer_for(data, tmp_path / "run", setting), []
    trainer.engine.eval_model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    found = validate(trainer.engine, Manifest(data), epoch=0, side_px=32)
    trainer.close()
    assert set(sizes) == {EVALUATION_BATCH if "cuda" in setting else 3}
    assert found.top1.num_pictures == 3


def test_a_poisoned_step_is_skipped_and_its_statistics_are_repaired(setting, data, tmp_path):
    trainer, weights = trainer_for(data, tmp_path / "run", setting, "--clip-norm", 1), []

    def poison(module, inputs):
        weights.append(module.head.weight.detach().clone())
        return (inputs[0] * torch.nan,) if len(weights) == 8 else None

    trainer.engine.network.register_forward_pre_hook(poison)
    finish(trainer, max_steps=10)
    assert torch.equal(weights[7], weights[8])
    assert not torch.equal(weights[8], weights[9])
    counted = {event["step"]: (event["bad_steps"], event["scale"]) for event in events(tmp_path / "run", "losses")}
    assert counted[8][0] == counted[7][0] + 1
    if is_half(setting):  # the first steps may overflow until the scale fits
        assert counted[8][1] == counted[7][1] / 2
    else:
        assert counted[10] == (1, 1.0)
    checkpoint = read_checkpoint(tmp_path / "run" / "last.pt")
    assert all(value.isfinite().all() for part in (checkpoint.network, checkpoint.ema) for value in part.values())


def room_for(pictures):
    """A hook that takes so much memory for each picture that no more than these fit into the limit of the flags."""

    def take(module, inputs):
        size, device = len(inputs[0]), inputs[0].device
        if not module.training:
            return
        if device.type == "cuda":  # the allocator itself refuses it
            torch.empty(int(size * PICTURE_GB * 1e9), dtype=torch.uint8, device=device)
        elif size > pictures:
            raise torch.OutOfMemoryError

    return take


def test_the_advice_for_too_little_memory_works(setting, data, tmp_path):
    if "cuda" in setting:  # the network itself takes less than one picture
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(5 * PICTURE_GB * 1e9 / total)
    trainer = trainer_for(data, tmp_path / "run", setting, "--batch-size", 12)
    trainer.engine.network.register_forward_pre_hook(room_for(4))
    with pytest.raises(
        OutOfMemory, match=r"12 pictures of 32 px; 3 fit \(tested\): --batch-size 3 --accumulate 4"
    ) as raised:
        finish(trainer)
    advised = [word for flag in re.findall(r"--[a-z-]+ \d+", str(raised.value)) for word in flag.split()]
    trainer = trainer_for(data, tmp_path / "run", setting, *advised)
    trainer.engine.network.register_forward_pre_hook(room_for(4))
    assert finish(trainer, max_steps=2).pictures == 24


@pytest.mark.parametrize("setting", SETTINGS[:2], indirect=True)
@pytest.mark.parametrize("compiled_as", ["default", "reduce-overhead"])
def test_a_compiled_network_takes_the_steps_of_an_eager_one(setting, compiled_as, data, tmp_path):
    still = ("--dropout", 0, "--max-steps", 3)
    eager = run_training(data, tmp_path / "eager", *setting, *still)
    compiled = run_training(data, tmp_path / "compiled", *setting, *still, "--compile", compiled_as)
    require_same_steps(compiled, eager, rel=0.03)
