import os
import subprocess
import sys
import time

import msgspec
import psutil
import pytest
import torch

import training.insight.tuning.trial as module
from tests.training.insight.tuning.stand_in import THREE, TINY, setting
from tests.training.small import ROOT
from training.insight.tuning.launch import TimeLimits, TrialLauncher, TrialRequest
from training.insight.tuning.setting import with_setting
from training.recipe import recipe_to_plain

PROGRAM = """
from tests.training.insight.tuning.stand_in import THREE, TINY, setting
from training.insight.tuning.launch import TimeLimits, TrialLauncher
TrialLauncher(TINY, THREE, 0, TimeLimits(budget_s=1000.0, max_s=1000.0))(setting(4096))
"""


def request(wanted, recipe=TINY, budget_s=0.3):
    plain = recipe_to_plain(with_setting(recipe, wanted))
    return TrialRequest(
        recipe=plain, classes=THREE, side_px=32, threads=1, local_rank=0, budget_s=budget_s, parent_pid=0
    )


def test_a_setting_is_timed_with_the_real_step():
    trial = module.run(request(setting(8)))
    assert trial.fits
    assert trial.setting == setting(8)
    assert trial.pictures_per_s > 0
    assert trial.memory_gb is None


@pytest.mark.slow  # compares two timings, which a busy machine disturbs
def test_overheads_weigh_less_on_a_larger_batch():
    one, many = (module.run(request(setting(size))).pictures_per_s for size in (2, 32))
    assert many > 2 * one


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), MemoryError()],
)
def test_too_little_memory_is_an_outcome(monkeypatch, error):
    def micro_step(*_, **__):
        raise error

    monkeypatch.setattr(module.Engine, "micro_step", micro_step)
    assert module.run(request(setting(8))).outcome == "does_not_fit"


def test_a_recipe_that_cannot_be_followed_is_an_outcome_that_says_why():
    frozen = msgspec.structs.replace(TINY.network, norms="frozen")  # of random weights
    trial = module.run(request(setting(40), msgspec.structs.replace(TINY, network=frozen)))
    assert trial.outcome == "crashed"
    assert "frozen" in trial.note


def test_a_programming_error_is_raised(monkeypatch):
    def micro_step(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(module.Engine, "micro_step", micro_step)
    with pytest.raises(RuntimeError, match="shapes"):
        module.run(request(setting(8)))


@pytest.mark.parametrize(
    ("limit_gb", "share"),
    [
        (0, 7 / 10),  # 3 at the peak, and 4 of other programs, of 10 GB
        (6, 7 / 10),
        (4, 3 / 4),  # the limit is for torch's own memory
    ],
)
def test_memory_is_the_peak_and_that_of_other_programs(limit_gb, share, monkeypatch):
    gb = 10**9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (4 * gb, 10 * gb))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 3 * gb)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 * gb)
    assert module._memory(torch.device("cuda"), limit_gb) == pytest.approx((7, share))


@pytest.mark.slow
def test_a_trial_runs_in_its_own_process():
    trial = TrialLauncher(TINY, THREE, 0, TimeLimits(budget_s=0.3))(setting(8))
    assert trial.fits, trial.note
    assert trial.pictures_per_s > 0


@pytest.mark.slow
def test_a_trial_ends_with_the_program_that_asked_for_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)}) as program:
        family = psutil.Process(program.pid)
        while not (trials := family.children()):
            time.sleep(0.1)
        program.kill()
    _, alive = psutil.wait_procs(trials, timeout=90)
    for left in alive:
        left.kill()
    assert not alive


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_memory_of_a_gpu_is_measured():
    hardware = msgspec.structs.replace(TINY.hardware, device="cuda")
    recipe = msgspec.structs.replace(TINY, hardware=hardware)
    trial = TrialLauncher(recipe, THREE, 0, TimeLimits())(setting(64, amp="fp16"))
    assert trial.fits, trial.note
    assert 0 < trial.memory_share < 0.9
