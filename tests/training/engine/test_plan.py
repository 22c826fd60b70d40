"""What a run says about itself before its first step."""

from contextlib import ExitStack, closing

import pytest
import torch

from models.network import PlantNetwork
from tests.training.small import command, events, make_trainer
from training.engine import reporting
from training.engine.device import Ranks
from training.engine.reporting import describe_run
from training.train import train


@pytest.fixture
def trainer_of(data, tmp_path):
    """Makes a trainer with some flags."""
    with ExitStack() as opened:

        def make(*flags):
            network = PlantNetwork("test_efficientnet", 3)
            return opened.enter_context(closing(make_trainer(data, tmp_path / "run", network, *flags)))

        yield make


def lines(trainer):
    return describe_run(trainer.engine, trainer.manifest, steps_per_epoch=7, global_batch=8)


def test_a_run_says_in_three_lines_where_and_how_it_trains(data, tmp_path, capfd):
    train(command(data, tmp_path / "run", "--max-steps", 1))
    written = [line for line in capfd.readouterr().err.splitlines() if line.startswith(("device", "data", "steps"))]
    assert written[0].startswith("device: CPU, ")
    assert written[0].endswith("float32")
    assert written[1:] == [
        "data: 30 training and 3 validation pictures of 3 classes",
        "steps: 2 epochs of 7 steps, 14 in all; a step takes 4 pictures of 32 px",
    ]
    assert events(tmp_path / "run", "start")[0]["plan"] == written


def test_accumulated_steps_and_growing_pictures_are_said(trainer_of):
    *_, steps = lines(trainer_of("--accumulate", 3, "--picture-px", 48, "--progressive", 0, 32, 1, 48))
    assert steps == "steps: 2 epochs of 7 steps, 14 in all; a step takes 24 pictures of 32 to 48 px"


def test_gpus_are_named_with_their_memory(trainer_of, monkeypatch):
    monkeypatch.setattr(reporting, "describe_device", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (149_100_000_000, 150_100_000_000))
    engine = (trainer := trainer_of()).engine
    engine.device, engine.amp_dtype, engine.ranks = torch.device("cuda", 0), torch.float16, Ranks(num_ranks=4)
    device, *_ = lines(trainer)
    assert device == "device: 4 ranks, each on NVIDIA H200, fp16; 149.1 of 150.1 GB of its memory are free"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_named_with_its_memory(trainer_of):
    device, *_ = lines(trainer_of("--device", "cuda", "--amp", "bf16"))
    assert "bf16" in device
    assert " GB of its memory are free" in device
