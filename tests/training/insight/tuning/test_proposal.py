import msgspec
import pytest
import torch

import training.insight.tuning.proposal as module
from models.network import PlantNetwork
from tests.training.insight.tuning.stand_in import TINY, Machine, setting
from tests.training.small import command
from training.insight.tuning.noise import NoiseScale
from training.insight.tuning.proposal import PLOT_FILE, RESULT_FILE, Tuned, agreed, propose, tune

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Stands in for the trials of this machine."""
    machine = Machine(half=1.0, gains={"channels_last": 0.5})
    monkeypatch.setattr(module, "TrialLauncher", lambda *_: machine)
    monkeypatch.setattr(module, "_NOISE_S", 0.0)
    return machine


def tuned(data, manifest, run, batch_size=2, **options):
    recipe = command(data, run, "--batch-size", batch_size).recipe
    return tune(recipe, manifest, PlantNetwork("test_efficientnet", 3), CPU, **options)


def proposal(size, num_ranks=1, **schedule):
    recipe = msgspec.structs.replace(TINY, schedule=msgspec.structs.replace(TINY.schedule, **schedule))
    trial = Machine()(size)
    return propose(recipe, trial, [trial], NoiseScale(1e4, 0.1, 512), device="CPU", num_ranks=num_ranks)


def test_a_smaller_batch_accumulates_to_the_recipes_effective_batch():
    found = proposal(8, batch_size=16, accumulate=2)
    assert (found.batch_size, found.accumulate) == (8, 4)
    assert found.backbone_lr == TINY.schedule.backbone_lr


def test_a_larger_batch_does_not_accumulate_and_gets_larger_rates():
    found = proposal(64, batch_size=16)
    assert (found.batch_size, found.accumulate) == (64, 1)
    assert found.head_lr == pytest.approx(2 * TINY.schedule.head_lr)


def test_pictures_of_all_ranks_count():
    found = proposal(8, num_ranks=4, batch_size=8)
    assert found.accumulate == 1
    assert found.backbone_lr == pytest.approx(2 * TINY.schedule.backbone_lr)


def test_train_takes_the_flags(data, tmp_path):
    found = proposal(48, batch_size=16)
    recipe = command(data, tmp_path, *found.flags.split()).recipe
    schedule, hardware = recipe.schedule, recipe.hardware
    assert (schedule.batch_size, schedule.accumulate) == (found.batch_size, found.accumulate)
    assert (schedule.backbone_lr, schedule.head_lr) == (found.backbone_lr, found.head_lr)
    assert (hardware.amp, hardware.channels_last, hardware.compile) == ("off", True, False)


def test_it_prints_the_table_and_the_flags_and_writes_what_it_found(data, manifest, machine, tmp_path, capsys):
    found = tuned(data, manifest, tmp_path / "run")
    told = capsys.readouterr().out
    assert found.flags in told
    assert "pictures/s" in told
    assert "noise scale" in told
    written = (tmp_path / "run" / RESULT_FILE).read_bytes()
    assert msgspec.json.decode(written, type=Tuned) == found
    assert (tmp_path / "run" / PLOT_FILE).stat().st_size > 1000
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [RESULT_FILE, PLOT_FILE]


def test_the_proposed_setting_was_run_and_is_the_fastest(data, manifest, machine, tmp_path):
    found = tuned(data, manifest, tmp_path)
    proposed = setting(found.batch_size, found.amp, found.channels_last, found.compile)
    assert proposed in machine.asked
    assert found.pictures_per_s == max(trial.pictures_per_s for trial in found.trials if trial.fits)


def test_what_was_measured_before_is_not_measured_again(data, manifest, machine, tmp_path, capsys):
    first = tuned(data, manifest, tmp_path).trials
    asked = len(machine.asked)
    assert tuned(data, manifest, tmp_path).trials == first
    assert len(machine.asked) == asked
    assert "measured before" in capsys.readouterr().out
    assert tuned(data, manifest, tmp_path, again=True).trials == first
    assert len(machine.asked) == 2 * asked


def test_thirty_pictures_do_not_make_one_large_batch(data, manifest, machine, tmp_path):
    assert len(manifest.rows_of("train")) == 30
    assert tuned(data, manifest, tmp_path).batch_size == 2


def test_the_recipes_own_batch_is_never_too_large(data, manifest, machine, tmp_path):
    assert tuned(data, manifest, tmp_path, batch_size=16).batch_size == 16


class Pair:
    """Two ranks of which the other one found `other`."""

    alone, is_main = False, True

    def __init__(self, other):
        self._other = iter(other)

    def minimum(self, value):
        return min(value, next(self._other))


def test_the_slowest_rank_and_the_fullest_card_decide():
    trial = Machine(card_gb=10.0)(16)  # ranks tell, in order: -severity, pictures/s, -warm-up, -memory, -share
    found = agreed(trial, Pair([-0.0, 1.0, -33.0, -9.5, -0.95]))
    assert (found.pictures_per_s, found.memory_gb, found.memory_share) == (1.0, 9.5, 0.95)
    assert found.warmup_s == 33.0
    assert not found.fits


def test_what_fails_on_one_rank_fails_on_all():
    assert agreed(Machine()(16), Pair([-3.0])).outcome == "does_not_fit"
    assert agreed(Machine(outcomes={16: "crashed"})(16), Pair([-0.0])).outcome == "crashed"
