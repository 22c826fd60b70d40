import pytest

import training.loading.data
import training.monitor.usage
from models.network import PlantNetwork
from tests.training.monitor.faults import SlowStore, late, waiting, write_heavy_pictures
from tests.training.small import command, events, make_trainer
from training.engine.checkpoint import CheckpointFolder
from training.engine.step import Engine
from training.monitor.bottleneck import EpochTiming, find_bottleneck
from training.monitor.usage import Usage
from training.prepare import Folder, prepare

CALM = ("--log-every-steps", 50, "--randaugment-magnitude", 0, "--cutmix", 0)


@pytest.fixture(scope="module")
def heavy_data(tmp_path_factory):
    root = tmp_path_factory.mktemp("heavy")
    prepare(Folder(pictures=write_heavy_pictures(root / "pictures"), out=root / "data", workers=1))
    return root / "data"


@pytest.fixture
def second_epoch_bottleneck(tmp_path):
    """Trains for two epochs; returns the bottleneck of the second, in which everything is warm."""

    def run(data, *flags, architecture="test_efficientnet"):
        trainer = make_trainer(data, tmp_path / "run", PlantNetwork(architecture, 3), *CALM, *flags)
        trainer.run()
        trainer.close()
        epoch = events(tmp_path / "run", "epoch")[-1]
        assert epoch["epoch"] == 2
        return epoch["verdict"]

    return run


def test_without_workers_the_advice_comes_from_the_time_of_loading():
    usage = Usage(8, 1.0, 1.0, None, 0.0, None, None, None, None)
    stages = {"wait": 8.0, "copy": 0.0, "forward": 1.0, "backward": 1.0, "optimizer": 0.0}
    timing = EpochTiming(pictures=100, seconds=10.0, pictures_per_s=10.0, start_s=0.0, stages=stages, usage=usage)
    recipe = command("data", "run", "--workers", 0).recipe
    found = find_bottleneck(timing, None, recipe, on_cuda=False, packed=False)
    # Steps without waiting take 2 s: 50 pictures/s. One process that loads all the time prepares 100 in 8 s.
    assert (found.kind, found.gain, found.pictures_per_s) == ("too few workers", 5.0, 50.0)
    assert found.fix.startswith("--workers 4 (one prepares 12.5 pictures/s")


@pytest.mark.slow
def test_a_slow_disk_is_distinguished_from_a_slow_decoder(second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(training.loading.data, "PictureStore", SlowStore)
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8)
    assert bottleneck["kind"] == "slow storage"
    assert "prepare.py pack" in bottleneck["fix"]
    assert bottleneck["gain"] > 1.2


@pytest.mark.slow
def test_a_host_that_waits_between_stages_is_found(second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(Engine, "micro_step", waiting(Engine.micro_step, times=4))
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8)
    assert bottleneck["kind"] == "host synchronization"
    assert 2 < bottleneck["gain"] < 6
    assert ".item()" in bottleneck["fix"]


@pytest.mark.slow
def test_reading_losses_at_every_step_is_found_and_fixed_by_its_flag(second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(Engine, "read", late(Engine.read, seconds=0.15))
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8, "--log-every-steps", 1)
    assert bottleneck["kind"] == "host synchronization"
    assert bottleneck["fix"] == "--log-every-steps 20"


def test_for_a_tiny_batch_a_larger_one_that_was_tried_is_proposed(second_epoch_bottleneck, data):
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 2)
    assert bottleneck["kind"] == "small batch"
    assert "--batch-size 8" in bottleneck["fix"]
    assert bottleneck["gain"] > 1.3


@pytest.mark.slow
def test_a_host_that_sleeps_inside_a_stage_is_found(second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(PlantNetwork, "forward", waiting(PlantNetwork.forward, times=10))
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8)
    assert bottleneck["kind"] == "host synchronization"


@pytest.mark.slow
def test_a_slow_disk_behind_loader_processes_is_found(second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(training.loading.data, "PictureStore", SlowStore)
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8, "--workers", 1)
    assert bottleneck["kind"] == "slow storage"
    assert "its one process is only" in bottleneck["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 4])
def test_one_worker_that_decodes_all_the_time_is_too_few(second_epoch_bottleneck, heavy_data, cores, monkeypatch):
    monkeypatch.setattr(training.monitor.usage, "cores_available", lambda: cores)
    bottleneck = second_epoch_bottleneck(heavy_data, "--batch-size", 4, "--workers", 1)
    assert bottleneck["gain"] > 1.2
    if cores == 1:
        assert bottleneck["kind"] == "too few cores"
        assert "prepare.py pack --short-side-px 40" in bottleneck["fix"]
    else:
        assert bottleneck["kind"] == "too few workers"
        assert bottleneck["fix"].startswith(("--workers 2 ", "--workers 3 ", "--workers 4 "))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "every"), [("steps", 1), ("minutes", 0.001)])
def test_too_frequent_checkpoints_are_found(name, every, second_epoch_bottleneck, data, monkeypatch):
    monkeypatch.setattr(CheckpointFolder, "save", late(CheckpointFolder.save, seconds=0.3))
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 8, f"--checkpoint-every-{name}", every)
    assert bottleneck["kind"] == "checkpoints"
    assert bottleneck["fix"].startswith(f"--checkpoint-every-{name} ")
    assert bottleneck["fix"].endswith(f" instead of {every}")


@pytest.mark.slow
def test_a_run_without_faults_is_balanced(second_epoch_bottleneck, data):
    bottleneck = second_epoch_bottleneck(data, "--batch-size", 16, "--picture-px", 96, architecture="efficientnet_b0")
    assert bottleneck["kind"] == "balanced"
    assert bottleneck["fix"] == ""
