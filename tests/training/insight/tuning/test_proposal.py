import msgspec
import pytest
import torch

import training.insight.tuning.proposal as module
from tests.training.insight.tuning.stand_in import TINY, Machine
from tests.training.small import command
from training.insight.tuning.proposal import RESULT_FILE, Tuned, propose, tune, worst_of_ranks

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Replaces the trials of this machine."""
    machine = Machine(half=1.0, gains={"channels_last": 0.5})
    monkeypatch.setattr(module, "TrialLauncher", lambda *_: machine)
    return machine


def tuned(data, manifest, run, batch_size=2, **options):
    recipe = command(data, run, "--batch-size", batch_size).recipe
    return tune(recipe, manifest, CPU, **options)


def proposal(size, num_ranks=1, **schedule):
    recipe = msgspec.structs.replace(TINY, schedule=msgspec.structs.replace(TINY.schedule, **schedule))
    trial = Machine()(size)
    return propose(recipe, trial, [trial], device="CPU", num_ranks=num_ranks)


def test_a_smaller_batch_accumulates_to_the_recipes_effective_batch():
    found = proposal(8, batch_size=16, accumulate=2)
    assert (found.setting.batch_size, found.accumulate) == (8, 4)
    assert found.backbone_lr == TINY.schedule.backbone_lr


def test_a_larger_batch_does_not_accumulate_and_gets_larger_rates():
    found = proposal(64, batch_size=16)
    assert (found.setting.batch_size, found.accumulate) == (64, 1)
    assert found.head_lr == pytest.approx(2 * TINY.schedule.head_lr)


def test_pictures_of_all_ranks_count():
    found = proposal(8, num_ranks=4, batch_size=8)
    assert found.accumulate == 1
    assert found.backbone_lr == pytest.approx(2 * TINY.schedule.backbone_lr)


def test_train_takes_the_flags(data, tmp_path):
    found = proposal(48, batch_size=16)
    recipe = command(data, tmp_path, *found.flags.split()).recipe
    schedule, hardware = recipe.schedule, recipe.hardware
    assert (schedule.batch_size, schedule.accumulate) == (found.setting.batch_size, found.accumulate)
    assert (schedule.backbone_lr, schedule.head_lr) == (found.backbone_lr, found.head_lr)
    assert (hardware.amp, hardware.channels_last, hardware.compile) == ("off", True, False)


def test_it_prints_the_table_and_the_flags_and_writes_what_it_found(data, manifest, machine, tmp_path, capsys):
    found = tuned(data, manifest, tmp_path / "run")
    told = capsys.readouterr().out
    assert found.flags in told
    assert "pictures/s" in told
    assert "Only speed and memory" in told
    written = (tmp_path / "run" / RESULT_FILE).read_bytes()
    assert msgspec.json.decode(written, type=Tuned) == found
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [RESULT_FILE]


def test_the_proposed_setting_was_run_and_is_the_fastest(data, manifest, machine, tmp_path):
    found = tuned(data, manifest, tmp_path)
    assert found.setting in machine.asked
    fastest = max((trial for trial in found.trials if trial.fits), key=lambda trial: trial.pictures_per_s)
    assert found.setting == fastest.setting


def test_thirty_pictures_do_not_make_one_large_batch(data, manifest, machine, tmp_path):
    assert len(manifest.rows_of("train")) == 30
    assert tuned(data, manifest, tmp_path).setting.batch_size == 2


def test_the_recipes_own_batch_is_never_too_large(data, manifest, machine, tmp_path):
    assert tuned(data, manifest, tmp_path, batch_size=16).setting.batch_size == 16


class Pair:
    """Two ranks; `other` holds the values of the other rank in the order in which they are reduced."""

    is_distributed, is_main = True, True

    def __init__(self, other):
        self._other = iter(other)

    def minimum(self, value):
        return min(value, next(self._other))

    def maximum(self, value):
        return max(value, next(self._other))


def test_the_slowest_rank_and_the_fullest_card_decide():
    trial = Machine(card_gb=10.0)(16)
    found = worst_of_ranks(trial, Pair([0.0, 1.0, 33.0, 9.5, 0.95]))
    assert (found.pictures_per_s, found.memory_gb, found.memory_share) == (1.0, 9.5, 0.95)
    assert found.warmup_s == 33.0
    assert not found.fits


def test_what_fails_on_one_rank_fails_on_all():
    assert worst_of_ranks(Machine()(16), Pair([3.0])).outcome == "does_not_fit"
    assert worst_of_ranks(Machine(outcomes={16: "crashed"})(16), Pair([0.0])).outcome == "crashed"
