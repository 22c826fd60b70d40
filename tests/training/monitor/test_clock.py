import time

import pytest
import torch

from training.monitor.clock import STAGES, StepClock

CPU = torch.device("cpu")


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


def test_a_stage_that_raises_is_counted():
    clock = StepClock(CPU)

    def step():
        with clock.stage("backward"):
            time.sleep(0.01)
            raise ValueError("no gradient")

    with pytest.raises(ValueError, match="no gradient"):
        step()
    assert clock.read()["backward"] >= 0.01


def test_a_stage_of_the_host_can_have_any_name():
    clock = StepClock(CPU)
    with clock.stage("save"):
        time.sleep(0.01)
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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
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
