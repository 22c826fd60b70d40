"""Two ranks on one machine, over Gloo, must train like one."""

import os
import random
import socket
import sys
from contextlib import suppress
from itertools import chain

import pytest
import torch
import torch.distributed as dist

from models.errors import BotanifyError, CheckpointError
from models.network import PlantNetwork
from tests.training.small import command, events, losses_by_step, run_training, write_things
from training.engine.checkpoint import read_checkpoint
from training.engine.device import Ranks, join, lost_ranks
from training.processes import clean_context
from training.train import train

STILL = ("--dropout", 0, "--cutmix", 0, "--norms", "frozen", "--workers", 0)


def as_rank(rank, num_ranks, port, results, work, *arguments):
    """Sets the environment of a rank, as torchrun does, and runs a function."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        results.put((rank, work(*arguments)))
    except BaseException as error:
        results.put((rank, f"{type(error).__name__}: {error}"))


def free_port():
    """Returns a port below those that the kernel gives to connections, so that no connection takes it meanwhile."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as listening, suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port


def on_ranks(num_ranks, work, *arguments):
    """Runs a function on that many ranks; returns their results, by rank."""
    port = free_port()
    context = clean_context("training.loading.data")
    results = context.SimpleQueue()
    ranks = [
        context.Process(target=as_rank, args=(rank, num_ranks, port, results, work, *arguments))
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    try:
        found = dict(results.get() for _ in ranks)
        for process in ranks:
            process.join(100)
    finally:  # pytest waits for processes that are left
        for process in ranks:
            process.kill()
    return [found[rank] for rank in range(num_ranks)]


def run_program(data, run, flags):
    train(command(data, run, *flags))


def train_on(num_ranks, data, run, *flags):
    assert on_ranks(num_ranks, run_program, data, run, flags) == [None] * num_ranks
    return run


@pytest.fixture(scope="module")
def first_weights(tmp_path_factory):
    """Weights with norm statistics, which frozen norms need."""
    torch.manual_seed(0)
    network = PlantNetwork("test_efficientnet", 3)
    network.train()
    with torch.no_grad():
        for _ in range(20):
            network(torch.randn(8, 3, 32, 32))
    path = tmp_path_factory.mktemp("weights") / "first.pt"
    torch.save(network.state_dict(), path)
    return path


def all_losses(run):
    return list(chain.from_iterable(losses for _, losses in sorted(losses_by_step(run).items())))


@pytest.mark.slow
def test_two_ranks_train_the_plant_output_as_one_rank_does(data, first_weights, tmp_path):
    things = write_things(tmp_path / "things", count=7)
    flags = (*STILL, "--weights", first_weights, "--epochs", 9, "--negatives", things)
    alone = run_training(data, tmp_path / "alone", *flags, "--batch-size", 16)
    both = train_on(2, data, tmp_path / "both", *flags, "--batch-size", 8)
    assert all_losses(both) == pytest.approx(all_losses(alone), abs=1e-5)
    losses = [[event["loss"] for event in events(run, "plant_output")] for run in (alone, both)]
    assert len(losses[0]) == 9
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    weights = [read_checkpoint(run / "last.pt").plant_output["weights"]["weight"] for run in (alone, both)]
    assert torch.allclose(*weights, atol=1e-6)


def test_twenty_steps_of_two_ranks_have_the_losses_of_one_rank_with_the_same_global_batch(
    data, first_weights, tmp_path
):
    flags = (*STILL, "--weights", first_weights, "--epochs", 7, "--max-steps", 20)
    alone = run_training(data, tmp_path / "alone", *flags, "--batch-size", 8)
    both = train_on(2, data, tmp_path / "both", *flags, "--checkpoint-every-steps", 1, "--batch-size", 4)
    assert {event["step"] for event in events(both, "checkpoint")} == set(range(1, 21))
    assert len(all_losses(alone)) == 20
    assert all_losses(both) == pytest.approx(all_losses(alone), abs=1e-5)
    weights = [read_checkpoint(run / "last.pt").network for run in (alone, both)]
    for name, value in weights[0].items():
        assert torch.allclose(value.float(), weights[1][name].float(), atol=1e-4), name
    validations = [events(run, "epoch")[-1]["validation"] for run in (alone, both)]
    assert validations[0]["loss"] == pytest.approx(validations[1]["loss"], abs=1e-4)
    assert validations[0]["top1"]["num_pictures"] == validations[1]["top1"]["num_pictures"] == 3


@pytest.mark.slow
@pytest.mark.timeout(600)  # a compilation on each rank
@pytest.mark.parametrize(("compiled", "within"), [("off", 1e-5), ("default", 1e-4)])
def test_ranks_that_accumulate_agree_with_one_rank(compiled, within, data, first_weights, tmp_path):
    flags = (*STILL, "--weights", first_weights, "--epochs", 2, "--accumulate", 2)
    alone = run_training(data, tmp_path / "alone", *flags, "--batch-size", 4)
    both = train_on(2, data, tmp_path / "both", *flags, "--batch-size", 2, "--compile", compiled)
    assert all_losses(both) == pytest.approx(all_losses(alone), abs=within)


@pytest.mark.slow
def test_a_run_of_two_ranks_resumes_with_one(data, first_weights, tmp_path):
    flags = (*STILL, "--weights", first_weights, "--epochs", 2)
    whole = run_training(data, tmp_path / "whole", *flags, "--batch-size", 4)
    run = train_on(2, data, tmp_path / "run", *flags, "--batch-size", 2, "--max-steps", 3)
    with pytest.raises(CheckpointError, match=r"2 on each of 1 ranks.*resume with --batch-size 4"):
        run_training(data, run, *flags, "--batch-size", 2, "--resume")
    run_training(data, run, *flags, "--batch-size", 4, "--resume")
    assert all_losses(run) == pytest.approx(all_losses(whole), abs=1e-5)


def agree_and_fail(who):
    ranks = join("cpu")
    found = [
        ranks.maxima([5 + ranks.rank])[0],
        ranks.maxima([ranks.rank, -ranks.rank]),
        ranks.sum([ranks.rank + 1.0, 10.0]),
        ranks.mean([ranks.rank + 1.0]),
        ranks.broadcast(f"rank {ranks.rank}"),
    ]
    assert found == [6, [1, 0], [3.0, 20.0], [1.5], "rank 0"]
    with ranks.main_first():
        if ranks.rank == who:
            raise ValueError("no such data")


def test_ranks_agree_and_if_the_first_one_fails_the_others_stop():
    assert on_ranks(2, agree_and_fail, 0) == [
        "ValueError: no such data",
        "BotanifyError: the first rank failed; its own message says why.",
    ]


def test_a_single_rank_agrees_with_itself():
    ranks = Ranks()
    assert (ranks.sum([2.0]), ranks.broadcast("x")) == ([2.0], "x")
    assert ranks.maxima([1, 3, 2]) == [1, 3, 2]
    assert not ranks.is_distributed
    assert ranks.is_main
    with ranks.main_first():
        pass


def test_more_ranks_than_gpus_is_an_error(monkeypatch):
    from training.engine.device import choose_device
    from training.recipe import HardwareRecipe

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device(HardwareRecipe(), 0) == torch.device("cuda", 0)
    with pytest.raises(BotanifyError, match="no GPU for rank 1"):
        choose_device(HardwareRecipe(), 1)


NCCL_MESSAGE = """NCCL error in: ProcessGroupNCCL.cpp:3701, unhandled system error, NCCL version 2.27.3
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
socketPollConnect: connect to 10.0.0.7<41235> returned No route to host"""


def test_an_error_of_nccl_is_one_line_with_its_first_line_and_its_cause():
    message = str(lost_ranks(dist.DistBackendError(NCCL_MESSAGE)))
    assert "unhandled system error, NCCL version 2.27.3" in message
    assert "No route to host" in message
    assert "NCCL_DEBUG=INFO" in message
    assert "\n" not in message
    assert "ncclSystemError" not in message


@pytest.mark.parametrize("message", [NCCL_MESSAGE, "[gloo/transport/tcp/pair.cc:598] Connection closed by peer"])
def test_without_other_ranks_an_error_is_none_of_theirs(message):
    assert lost_ranks(RuntimeError(message)) is None


def test_ranks_that_cannot_meet_end_with_one_line(data, tmp_path, monkeypatch):
    def join_fails(_device):
        raise dist.DistNetworkError("The client socket has timed out while trying to connect to (10.0.0.7, 29500).")

    monkeypatch.setattr("training.engine.device.join", join_fails)
    with pytest.raises(BotanifyError, match=r"cannot exchange values \(The client socket has timed out"):
        train(command(data, tmp_path / "run"))
