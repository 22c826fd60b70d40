"""Tuning on simulated machines, and trials in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from unittest import mock

import msgspec
import numpy as np
import psutil
import pytest
import torch
from msgspec.structs import replace

from tests.make import ROOT, cases, require_ended
from tests.training.small import RECIPE, command
from tests.waiting import wait_until
from training import tuning, tuning_trial
from training.engine.losses import TrainingClasses
from training.loading.negatives import RunInput
from training.processes import clean_context
from training.recipe import rate_factor, read_recipe
from training.tuning import (
    RESULT_FILE,
    NothingRan,
    Tuned,
    describe,
    find_batch_size,
    launch,
    propose,
    tune,
)
from training.tuning_trial import MAX_MEMORY_SHARE, Trial, with_batch_size

TINY = read_recipe(RECIPE)
THREE = TrainingClasses((0, 1, 2), 3, (10.0, 10.0, 10.0))
CPU = torch.device("cpu")


class Machine:
    """Speed rises with the batch size toward 1,000 pictures/s, with half of it at `half`; memory rises linearly.

    `outcomes` holds failures by batch size. `noise` is a random generator that varies the speed.
    """

    def __init__(self, *, half=20.0, gb_each=0.1, gb_base=1.0, card_gb=1e9, outcomes=None, noise=None):
        self.half, self.gb_each, self.gb_base, self.card_gb = half, gb_each, gb_base, card_gb
        self.outcomes, self.noise, self.asked = outcomes or {}, noise, []

    def speed(self, size):
        return 1000 * size / (size + self.half)

    def memory_share(self, size):
        return (self.gb_base + size * self.gb_each) / self.card_gb

    def __call__(self, wanted, *_):
        size = wanted if isinstance(wanted, int) else wanted.schedule.batch_size
        self.asked.append(size)
        outcome = self.outcomes.get(size, "ran" if self.memory_share(size) <= 1 else "does_not_fit")
        if outcome != "ran":
            return Trial(batch_size=size, outcome=outcome, note="planted")
        speed = self.speed(size) * (1 + 0.02 * self.noise.standard_normal() if self.noise else 1)
        share = self.memory_share(size)
        return Trial(batch_size=size, pictures_per_s=speed, memory_gb=share * self.card_gb, memory_share=share)


# ---- the batch size


def search(machine, largest=100_000):
    found = find_batch_size(machine, largest)
    return found.batch_size, machine.asked


def machines():
    """Two hundred random machines with noisy speeds and random failures."""
    for seed in range(200):
        draws = np.random.default_rng(seed)
        failing = {
            int(size): str(draws.choice(["crashed", "too_slow", "does_not_fit"]))
            for size in 2 ** draws.integers(5, 12, 2)
        }
        yield Machine(
            half=float(10 ** draws.uniform(-1, 3)),
            gb_base=0.5,
            gb_each=0.02,
            card_gb=float(draws.uniform(1, 40)),
            outcomes=failing,
            noise=draws,
        )


def test_the_returned_size_was_measured_once_and_uses_at_most_ninety_percent_of_the_memory():
    shares = []
    for machine in machines():
        chosen, asked = search(machine)
        assert chosen in asked
        assert machine.outcomes.get(chosen, "ran") == "ran"
        assert len(asked) == len(set(asked))
        assert all(size % 8 == 0 or size in {1, 2, 4} for size in asked)
        shares.append(machine.memory_share(chosen))
    assert 0.8 < max(shares) <= MAX_MEMORY_SHARE  # the memory is used where it pays


def test_the_smallest_batch_within_three_percent_of_the_fastest_is_chosen():
    machine = Machine(half=4.0)
    chosen, asked = search(machine)
    fastest = max(map(machine.speed, asked))
    assert machine.speed(chosen) >= 0.97 * fastest
    assert all(machine.speed(size) < 0.97 * fastest for size in asked if size < chosen)
    assert chosen < max(asked)


@pytest.mark.parametrize("limit", [*range(1, 33), 47, 63, 100, 250, 777, 1000])
def test_the_largest_size_that_fits_is_found_if_larger_ones_fail(limit):
    class Rising(Machine):
        def speed(self, size):
            return size

    machine = Rising(gb_base=0.0, gb_each=1.0, card_gb=(limit + 0.5) / MAX_MEMORY_SHARE)
    chosen, asked = search(machine)
    allowed = [size for size in range(1, limit + 1) if size in {1, 2, 4} or size % 8 == 0]
    assert chosen <= limit
    # Between powers of two it looks at quarters, and no closer than multiples of 8.
    assert chosen > 0.75 * limit or chosen == max(allowed)
    assert len(asked) < 20


@pytest.mark.parametrize(("outcome", "chosen", "most"), [("crashed", 32, 128), ("too_slow", 56, 64)])
def test_growth_ends_at_the_second_crash_or_the_first_size_that_is_too_slow(outcome, chosen, most):
    found, asked = search(Machine(half=1000.0, outcomes=dict.fromkeys(range(64, 10_000), outcome)))
    assert (found, max(asked)) == (chosen, most)


def test_a_crash_at_one_size_is_skipped():
    assert search(Machine(half=20.0, outcomes={32: "crashed"}))[0] > 32


def test_a_crash_does_not_end_the_search_for_smaller_sizes():
    class Falling(Machine):
        def speed(self, size):
            return 1000 / size

    chosen, asked = search(Falling(outcomes={4: "crashed"}), 16)
    assert (chosen, asked) == (1, [8, 16, 4, 2, 1])


def test_growth_ends_when_speed_no_longer_rises():
    class Falling(Machine):
        def speed(self, size):
            return 100 - size

    assert max(search(Machine(half=0.01))[1]) <= 32
    assert search(Falling())[0] <= 4


@pytest.mark.parametrize(("largest", "chosen"), [(50, 48), (56, 56), (64, 64)])
def test_no_batch_is_larger_than_the_data(largest, chosen):
    found, asked = search(Machine(half=1000.0), largest)
    assert found == max(asked) == chosen


def test_the_error_names_the_reason_if_nothing_runs():
    with pytest.raises(NothingRan, match="planted"):
        search(Machine(outcomes=dict.fromkeys(range(10_000), "crashed")))


# ---- the proposal


def proposed(trial, recipe=TINY, num_ranks=1, loaded_per_s=1e9):
    return propose(recipe, trial, [trial], device="CPU", num_ranks=num_ranks, loaded_per_s=loaded_per_s)


def proposal(size, num_ranks=1, **schedule):
    return proposed(Machine()(size), replace(TINY, schedule=replace(TINY.schedule, **schedule)), num_ranks)


@pytest.mark.parametrize(
    ("size", "num_ranks", "batch_size", "of_recipe", "accumulate", "factor"), cases(__file__, "rates")
)
def test_rates_grow_with_the_square_root_of_the_pictures_of_a_step(
    size, num_ranks, batch_size, of_recipe, accumulate, factor
):
    found = proposal(size, num_ranks, batch_size=batch_size, accumulate=of_recipe)
    assert (found.batch_size, found.accumulate) == (size, accumulate)
    schedule = TINY.schedule
    rates = factor * schedule.backbone_lr, factor * schedule.head_lr
    assert (found.backbone_lr, found.head_lr) == pytest.approx(rates)


def test_a_recipe_that_scales_its_rates_by_ranks_gets_what_is_left_of_the_square_root():
    found = proposal(64, 4, batch_size=16, scale_lr=True)
    assert found.backbone_lr * rate_factor(replace(TINY.schedule, scale_lr=True), 4) == pytest.approx(
        4 * TINY.schedule.backbone_lr  # 256 pictures of 16
    )


def test_a_recipe_with_cuda_graphs_gets_a_proposal_that_accumulates_nothing():
    recipe = replace(TINY, hardware=replace(TINY.hardware, compile="reduce-overhead"))
    found = proposed(Machine()(2), recipe)
    assert found.accumulate == 1
    assert found.backbone_lr == pytest.approx(TINY.schedule.backbone_lr / 2**0.5, rel=0.01)  # 2 pictures of 4


@pytest.mark.parametrize(("loaded", "workers", "num_cores", "expected"), cases(__file__, "workers"))
def test_workers_keep_up_with_the_network_as_far_as_the_cores_go(loaded, workers, num_cores, expected, monkeypatch):
    monkeypatch.setattr(tuning, "cores", lambda: num_cores)
    recipe = replace(TINY, data=replace(TINY.data, workers=workers))
    found = proposed(Trial(batch_size=16, pictures_per_s=150), recipe, loaded_per_s=loaded)
    assert found.workers == expected
    limit = "limits the run" if loaded < 150 else "keeps up"
    assert any(limit in reason for reason in found.reasons)


def test_train_takes_the_flags(data, tmp_path):
    found = proposal(48, batch_size=16)
    recipe = command(data, tmp_path, *found.flags.split()).recipe
    schedule, hardware = recipe.schedule, recipe.hardware
    assert (schedule.batch_size, schedule.accumulate) == (found.batch_size, found.accumulate)
    assert (schedule.backbone_lr, schedule.head_lr) == (found.backbone_lr, found.head_lr)
    assert (hardware.amp, hardware.channels_last, hardware.compile) == ("off", True, "off")
    assert recipe.data.workers == found.workers


@pytest.fixture
def machine(monkeypatch):
    """Replaces the trials of this machine."""
    machine = Machine(half=1.0)
    monkeypatch.setattr(tuning, "launch", machine)
    return machine


@pytest.mark.parametrize("batch_size", [2, 16])  # 30 pictures: a batch of 4 would leave too few steps
def test_it_prints_and_writes_a_batch_size_that_was_run(batch_size, data, manifest, machine, tmp_path, capsys):
    recipe = command(data, tmp_path / "run", "--batch-size", batch_size).recipe
    found = tune(RunInput.of(recipe), manifest, CPU)
    assert found.batch_size == batch_size  # the recipe's own batch is never too large
    assert found.batch_size in machine.asked
    fastest = max((trial for trial in found.trials if trial.fits), key=lambda trial: trial.pictures_per_s)
    assert found.batch_size == fastest.batch_size
    told = capsys.readouterr().out
    assert found.flags in told
    assert "Only speed and memory" in told
    written = (tmp_path / "run" / RESULT_FILE).read_bytes()
    assert msgspec.json.decode(written, type=Tuned) == found
    assert [path.name for path in (tmp_path / "run").iterdir()] == [RESULT_FILE]


def test_a_trial_is_told_with_its_memory_and_its_failure():
    machine = Machine(card_gb=8.0, outcomes={256: "crashed"})
    assert describe(machine(32)).startswith("615.4 pictures/s, 4.2 GB (52%), 0 s")
    assert "7.4 GB (92%), above 90% of the memory" in describe(machine(64))
    assert describe(machine(128)) == "does not fit: planted"
    assert describe(machine(256)) == "crashed: planted"


# ---- a trial in its own process


def fails(*_):
    raise ValueError("no such kernel")


def is_killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def takes_long(*_):
    time.sleep(60)


def is_noisy(recipe, classes, device, budget_s):
    print("compiling")
    os.write(2, b"noise of a library")
    note = f"{len(classes.taxon_of_output)} {device} {budget_s}"
    return Trial(batch_size=recipe.schedule.batch_size, note=note)


@pytest.fixture
def prompt_starts(monkeypatch):
    """A trial starts from the server of processes; a new Python would import PyTorch for seconds."""
    monkeypatch.setattr(tuning, "multiprocessing", mock.Mock(get_context=lambda _: clean_context()))


def test_a_trial_receives_the_batch_size_and_returns_its_result(prompt_starts, capfd):
    trial = launch(with_batch_size(TINY, 8), THREE, torch.device("cuda", 1), measure=is_noisy)
    assert trial == Trial(batch_size=8, note="3 cuda:1 4.0")
    assert capfd.readouterr() == ("", "")


def test_a_trial_that_fails_or_is_killed_or_takes_too_long_is_an_outcome(prompt_starts):
    failed = launch(TINY, THREE, CPU, measure=fails)
    assert (failed.outcome, failed.note) == ("crashed", "ValueError: no such kernel")
    killed = launch(TINY, THREE, CPU, measure=is_killed)
    assert killed.outcome == "crashed"
    assert "SIGKILL" in killed.note
    assert launch(TINY, THREE, CPU, max_s=0.3, measure=takes_long).outcome == "too_slow"


def timed(recipe=TINY):
    return tuning_trial.time_batch_size(with_batch_size(recipe, 8), THREE, CPU, 0.3)


@pytest.mark.parametrize(("pairs", "side_px"), [((), 32), (((0, 64), (1, 32)), 64)])
def test_the_largest_pictures_are_measured(pairs, side_px, monkeypatch):
    asked = []
    monkeypatch.setattr(tuning_trial, "_steps", lambda *arguments: asked.append(arguments[-1]) or fails)
    recipe = replace(TINY, pictures=replace(TINY.pictures, progressive=pairs))
    with pytest.raises(ValueError, match="no such kernel"):
        timed(recipe)
    assert asked == [side_px]


def test_a_batch_size_is_timed_with_the_real_step():
    trial = timed()
    assert (trial.fits, trial.batch_size, trial.memory_gb) == (True, 8, None)
    assert trial.pictures_per_s > 0


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), MemoryError()],
)
def test_too_little_memory_is_an_outcome_and_a_programming_error_is_not(error, monkeypatch):
    micro_step = mock.Mock(side_effect=error)
    monkeypatch.setattr(tuning_trial.Engine, "micro_step", micro_step)
    assert timed().outcome == "does_not_fit"
    micro_step.side_effect = RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="shapes"):
        timed()


def test_memory_is_the_peak_and_that_of_other_programs(monkeypatch):
    gb = 10**9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (4 * gb, 10 * gb))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 3 * gb)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 * gb)
    # 3 at the peak, and 4 of other programs, of 10 GB
    assert tuning_trial._memory(torch.device("cuda")) == pytest.approx((7, 7 / 10))


@pytest.mark.slow
def test_a_trial_runs_in_its_own_process():
    trial = launch(TINY, THREE, CPU, budget_s=0.3)
    assert trial.fits, trial.note
    assert trial.pictures_per_s > 0


@pytest.mark.slow
def test_a_trial_ends_with_the_program_that_asked_for_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "from tests.training.test_tuning import CPU, THREE, TINY, launch, with_batch_size\n"
        "if __name__ == '__main__':\n"
        "    launch(with_batch_size(TINY, 4096), THREE, CPU, budget_s=1000.0, max_s=1000.0)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)}) as program:
        family = psutil.Process(program.pid)
        trials = wait_until(family.children, program)
        program.kill()
    require_ended(trials)


@pytest.mark.gpu
def test_memory_of_a_gpu_is_measured_and_too_little_is_an_outcome():
    recipe, device = replace(TINY, hardware=replace(TINY.hardware, device="cuda", amp="fp16")), torch.device("cuda", 0)
    trial = launch(with_batch_size(recipe, 64), THREE, device)
    assert trial.fits, trial.note
    assert 0 < trial.memory_share < 0.9
    large = replace(recipe, pictures=replace(recipe.pictures, picture_px=1024))
    assert launch(with_batch_size(large, 65_536), THREE, device).outcome in {"does_not_fit", "crashed"}
