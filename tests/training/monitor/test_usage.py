import time

import pytest
import torch

from training.monitor.counters import cores_available
from training.monitor.usage import UsageSampler
from training.processes import clean_context

CPU = torch.device("cpu")


def work(seconds):
    """Keeps a core busy, like a loader process that decodes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture
def sampled():
    """Samples the usage while a child process runs."""

    def run(function, seconds):
        sampler = UsageSampler(CPU, workers=1)
        process = clean_context("training.loading.data").Process(target=function, args=(60,), daemon=True)
        process.start()
        time.sleep(0.3)  # it starts
        sampler.begin()
        time.sleep(seconds)
        usage = sampler.end()
        sampler.close()
        process.kill()
        process.join()
        return usage

    return run


def test_a_busy_loader_is_distinguished_from_a_waiting_one(sampled):
    busy, idle = sampled(work, 0.5), sampled(time.sleep, 0.5)
    assert busy.loader_busy > 0.5
    assert idle.loader_busy < 0.2
    assert busy.cpu_cores_mean > idle.cpu_cores_mean


def test_the_sleep_of_the_training_thread_is_measured():
    sampler = UsageSampler(CPU, workers=0)
    sampler.begin()
    time.sleep(0.3)
    work(0.05)
    usage = sampler.end()
    sampler.close()
    assert usage.host_slept_s is None or 0.25 < usage.host_slept_s < 0.35
    assert usage.loader_busy is None


def test_begin_discards_earlier_samples():
    sampler = UsageSampler(CPU, workers=0)
    sampler.begin()
    time.sleep(0.2)
    sampler.begin()
    usage = sampler.end()
    sampler.close()
    assert usage.host_slept_s is None or usage.host_slept_s < 0.1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_cannot_be_sampled_is_explained_and_raises_nothing():
    sampler = UsageSampler(torch.device("cuda"), workers=0)
    sampler.begin()
    usage = sampler.end()
    sampler.close()
    assert usage.gpu_use_mean is None
    assert sampler.gpu_problem


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_busy_gpu_is_measured_as_busy():
    device = torch.device("cuda")
    sampler, matrix = UsageSampler(device, workers=0), torch.randn(8192, 8192, device=device)
    sampler.begin()
    end = time.perf_counter() + 3
    while time.perf_counter() < end:
        matrix @ matrix
        torch.cuda.synchronize()
    usage = sampler.end()
    sampler.close()
    assert usage.gpu_use_max > 0.5
    assert usage.gpu_memory_gb_max > 0.2


def test_the_ranks_of_a_machine_share_its_cores(monkeypatch):
    alone = cores_available()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores_available() == max(alone // 2, 1)
