import time
from contextlib import suppress

import pytest
import torch

import training.loading.data
from models.network import PlantNetwork
from tests.training.monitor.faults import SlowStore, late, waiting
from tests.training.small import events, finish, make_trainer, run_training
from training.engine.checkpoint import CheckpointFolder
from training.engine.step import Engine
from training.monitor.monitor import STAGES, EpochTiming, Monitor, StepClock, Usage, UsageSampler, find_bottleneck

CPU = torch.device("cpu")
CALM = ("--log-every-steps", 50, "--randaugment-magnitude", 0, "--cutmix", 0)


# ---- the clock


def test_the_clock_sums_each_stage_and_resets_when_read():
    clock = StepClock(CPU)
    for _ in range(2):
        with clock.stage("forward"):
            time.sleep(0.02)
    first, second = clock.read(), clock.read()
    assert tuple(first) == STAGES
    assert 0.04 <= first["forward"] < 5
    assert first["backward"] == 0
    assert second["forward"] == 0


def test_a_stage_that_raises_is_counted_and_may_have_a_name_of_the_host():
    clock = StepClock(CPU)
    with suppress(OSError), clock.stage("save"):
        time.sleep(0.01)
        raise OSError
    assert clock.read()["save"] >= 0.01


def test_the_clock_costs_a_few_microseconds():
    clock = StepClock(CPU)

    def microseconds():
        began = time.perf_counter()
        for _ in range(1000):
            with clock.stage("forward"):
                pass
        return (time.perf_counter() - began) * 1000

    assert min(microseconds() for _ in range(10)) < 20  # 0.9 where it was measured


@pytest.mark.gpu
def test_on_cuda_the_clock_measures_the_device_and_not_the_host():
    device = torch.device("cuda")
    clock = StepClock(device)
    matrix = torch.randn(4096, 4096, device=device)
    (matrix @ matrix).sum().item()
    began = time.perf_counter()
    for _ in range(20):
        with clock.stage("forward"):
            for _ in range(10):
                matrix @ matrix
    sent_s = time.perf_counter() - began
    device_s = clock.read()["forward"]
    wall_s = time.perf_counter() - began
    assert sent_s < 0.5 * device_s
    assert 0.8 * wall_s < device_s <= wall_s


# ---- the use of the machine


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_cannot_be_sampled_is_explained_and_raises_nothing():
    sampler = UsageSampler(torch.device("cuda"))
    sampler.begin()
    sampler.close()
    assert sampler.so_far().gpu_use_mean is None
    assert sampler.gpu_problem


@pytest.mark.gpu
def test_a_busy_gpu_is_measured_as_busy():
    device = torch.device("cuda")
    sampler, matrix = UsageSampler(device), torch.randn(8192, 8192, device=device)
    sampler.begin()
    end = time.perf_counter() + 3
    while time.perf_counter() < end:
        matrix @ matrix
        torch.cuda.synchronize()
    usage = sampler.so_far()
    sampler.close()
    assert usage.gpu_use_mean > 0.3
    assert usage.gpu_memory_gb_max > 0.2


# ---- what limits a run


@pytest.fixture
def second_epoch_bottleneck(tmp_path):
    """Trains for two epochs; returns the bottleneck of the second, in which everything is warm."""

    def run(data, *flags, architecture="test_efficientnet"):
        trainer = make_trainer(data, tmp_path / "run", *CALM, *flags, network=PlantNetwork(architecture, 3))
        finish(trainer)
        epoch = events(tmp_path / "run", "epoch")[-1]
        assert epoch["epoch"] == 2
        return epoch["verdict"]

    return run


def timing(gpu_use=None, cores=8, **stages):
    """An epoch of 100 pictures in 10 s."""
    stages = dict.fromkeys(STAGES, 0.0) | stages
    usage = Usage(cores, gpu_use)
    return EpochTiming(pictures=100, seconds=10.0, pictures_per_s=10.0, start_s=0.0, stages=stages, usage=usage)


@pytest.mark.parametrize(
    ("measured", "workers", "kind", "fix"),
    [
        (timing(wait=8.0, forward=2.0), 0, "loader", "--workers 4"),
        (timing(wait=5.0, forward=5.0), 3, "loader", "--workers 6"),
        (timing(wait=5.0, forward=5.0, cores=4), 4, "loader", "store smaller pictures"),
        (timing(save=2.0, forward=8.0), 0, "checkpoints", "fewer checkpoints"),
        (timing(read=4.0, forward=6.0), 0, "host", "a larger --log-every-steps"),
        (timing(forward=9.5), 0, "balanced", ""),
    ],
)
def test_the_most_expensive_cause_is_told_with_its_fix(measured, workers, kind, fix):
    told = find_bottleneck(measured, workers, CPU)
    assert told.kind == kind
    assert told.fix.startswith(fix)
    assert (told.gain > 1) == (kind != "balanced")


def test_a_gpu_with_gaps_that_nothing_explains_needs_a_larger_batch():
    cuda = torch.device("cuda")
    assert find_bottleneck(timing(forward=9.5, gpu_use=0.4), 4, cuda).kind == "small batch"
    assert find_bottleneck(timing(forward=9.5, gpu_use=0.95), 4, cuda).kind == "balanced"


def test_threads_that_other_programs_hinder_are_told_to_be_one(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monitor = Monitor(CPU)
    monitor.begin_epoch()
    monitor.count(torch.zeros(2, dtype=torch.long))
    with monitor.clock.stage("forward"):
        time.sleep(0.05)  # takes no time of the processor
    told = find_bottleneck(monitor.end_epoch(), 0, CPU)
    assert told.kind == "processor"
    assert "OMP_NUM_THREADS=1" in told.fix


def test_the_share_of_waiting_is_that_of_the_measured_time():
    assert timing(wait=2.5).waiting == 0.25
    told = find_bottleneck(timing(wait=5.0, forward=5.0), 4, CPU)
    assert told.gain == 2.0
    assert "wait for pictures 50% of the time" in str(told)
    assert str(told).endswith("(up to 2.0 times as fast).")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "slowed", "flags", "kind"),
    [
        (Engine, "micro_step", lambda step: waiting(step, times=4), (), "host"),
        (Engine, "read", lambda read: late(read, seconds=0.15), ("--log-every-steps", 1), "host"),
        (training.loading.data, "PictureStore", lambda _: SlowStore, ("--workers", 1), "loader"),
        (CheckpointFolder, "save", lambda save: late(save, 0.3), ("--checkpoint-every-steps", 1), "checkpoints"),
    ],
)
def test_a_part_that_is_slow_is_found(owner, name, slowed, flags, kind, second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(owner, name, slowed(getattr(owner, name)))
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8, *flags)
    assert bottleneck["kind"] == kind
    assert bottleneck["gain"] > 1.2


@pytest.mark.slow
def test_a_run_without_faults_is_balanced(second_epoch_bottleneck, data):
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 16, "--picture-px", 96, architecture="efficientnet_b0")
    assert bottleneck["kind"] == "balanced"
    assert bottleneck["fix"] == ""


# ---- a whole run


def test_every_epoch_logs_where_its_time_went(data, tmp_path):
    run_training(data, tmp_path / "run")
    epochs = events(tmp_path / "run", "epoch")
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    for epoch in epochs:
        stages = epoch["use"]["stages"]
        assert {"wait", "copy", "forward", "backward", "optimizer"} <= set(stages)
        assert 0 < sum(stages.values()) <= epoch["use"]["seconds"] * 1.001
        assert epoch["verdict"]["kind"]
        assert epoch["verdict"]["gain"] >= 1
    assert epochs[1]["use"]["pictures"] == 28
