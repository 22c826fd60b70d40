import msgspec
import pytest
import torch

import training.insight.tuning.cache as module
from tests.training.insight.tuning.stand_in import TINY, Machine, setting
from training.insight.tuning.cache import TrialCache, cache_folder, facts_of
from training.insight.tuning.launch import Limits

CPU = torch.device("cpu")


def facts(recipe=TINY, num_outputs=3, num_ranks=1):
    return facts_of(recipe, num_outputs, CPU, num_ranks, Limits())


def changed(section, **knobs):
    return msgspec.structs.replace(TINY, **{section: msgspec.structs.replace(getattr(TINY, section), **knobs)})


def test_a_trial_is_found_again(tmp_path):
    trial = Machine()(32)
    TrialCache(facts(), tmp_path).keep(trial)
    assert TrialCache(facts(), tmp_path).find(setting(32)) == trial
    assert TrialCache(facts(), tmp_path).find(setting(64)) is None


@pytest.mark.parametrize(
    "other",
    [
        facts(num_outputs=4),
        facts(num_ranks=2),
        facts(changed("network", architecture="efficientnet_b4")),
        facts(changed("pictures", picture_px=64)),
        facts(changed("pictures", serve_px=64)),
        facts(changed("augment", cutmix=0.0)),
        facts(changed("loss", target="taxon")),
        facts(changed("hardware", cudnn_benchmark=False)),
        facts(changed("schedule", ema_decay=0.0)),
    ],
)
def test_another_way_of_training_is_measured_anew(tmp_path, other):
    TrialCache(facts(), tmp_path).keep(Machine()(32))
    assert TrialCache(other, tmp_path).find(setting(32)) is None


def test_another_device_or_version_is_measured_anew(tmp_path, monkeypatch):
    TrialCache(facts(), tmp_path).keep(Machine()(32))
    with monkeypatch.context() as patch:
        patch.setattr(module.timm, "__version__", "0.0.1")
        assert TrialCache(facts(), tmp_path).find(setting(32)) is None
    monkeypatch.setattr(module, "describe_device", lambda _: "NVIDIA Other")
    assert TrialCache(facts(), tmp_path).find(setting(32)) is None


def test_rates_and_data_make_no_difference(tmp_path):
    TrialCache(facts(), tmp_path).keep(Machine()(32))
    recipe = changed("schedule", backbone_lr=1.0, batch_size=2, epochs=9)
    assert TrialCache(facts(recipe), tmp_path).find(setting(32)) is not None


def test_crashes_and_late_trials_are_forgotten(tmp_path):
    cache = TrialCache(facts(), tmp_path)
    machine = Machine(outcomes={8: "crashed", 16: "too_slow", 32: "does_not_fit"})
    for size in (8, 16, 32):
        cache.keep(machine(size))
    kept = TrialCache(facts(), tmp_path)
    assert kept.find(setting(8)) is None
    assert kept.find(setting(16)) is None
    assert kept.find(setting(32)).outcome == "does_not_fit"


def test_a_damaged_file_is_measured_anew(tmp_path):
    cache = TrialCache(facts(), tmp_path)
    cache.keep(Machine()(32))
    cache.path.write_bytes(cache.path.read_bytes()[:-20])
    assert TrialCache(facts(), tmp_path).find(setting(32)) is None


def test_old_trials_can_be_forgotten(tmp_path):
    TrialCache(facts(), tmp_path).keep(Machine()(32))
    assert TrialCache(facts(), tmp_path, forget=True).find(setting(32)) is None


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = TrialCache(facts(), tmp_path / "file")
    cache.keep(Machine()(32))
    assert cache.find(setting(32)) is not None


def test_the_folder_is_where_the_user_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "botanify" / "tuning"
