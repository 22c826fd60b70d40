import pytest

import training.loading.data
import training.monitor.usage
from models.network import PlantNetwork
from tests.training.monitor.faults import SlowStore, late, waiting, write_heavy_pictures
from tests.training.small import events, make_trainer
from training.engine.checkpoint_folder import CheckpointFolder
from training.engine.step import Engine
from training.prepare import Folder, prepare

CALM = ("--log-every-steps", 50, "--randaugment-ops", 0, "--cutmix", 0)


@pytest.fixture(scope="module")
def heavy_data(tmp_path_factory):
    root = tmp_path_factory.mktemp("heavy")
    prepare(Folder(pictures=write_heavy_pictures(root / "pictures"), out=root / "data", workers=1))
    return root / "data"


@pytest.fixture
def judged(tmp_path):
    """Trains for two epochs; gives what is said of the second, in which nothing starts any more."""

    def run(data, *flags, architecture="test_efficientnet"):
        trainer = make_trainer(data, tmp_path / "run", PlantNetwork(architecture, 3), *CALM, *flags)
        trainer.run()
        trainer.close()
        epoch = events(tmp_path / "run", "epoch")[-1]
        assert epoch["epoch"] == 2
        return epoch["verdict"]

    return run


def test_a_slow_disk_is_told_from_a_slow_decoder(judged, data, monkeypatch):
    monkeypatch.setattr(training.loading.data, "PictureStore", SlowStore)
    verdict = judged(data, "--batch-size", 8)
    assert verdict["kind"] == "slow storage"
    assert "prepare.py pack" in verdict["fix"]
    assert verdict["gain"] > 1.2


def test_a_host_that_waits_between_the_stages_is_seen(judged, data, monkeypatch):
    monkeypatch.setattr(Engine, "micro_step", waiting(Engine.micro_step, times=4))
    verdict = judged(data, "--batch-size", 8)
    assert verdict["kind"] == "host synchronization"
    assert 2 < verdict["gain"] < 6
    assert ".item()" in verdict["fix"]


def test_losses_read_at_every_step_are_blamed_by_their_flag(judged, data, monkeypatch):
    monkeypatch.setattr(Engine, "read", late(Engine.read, seconds=0.15))
    verdict = judged(data, "--batch-size", 8, "--log-every-steps", 1)
    assert verdict["kind"] == "host synchronization"
    assert verdict["fix"] == "--log-every-steps 20"


def test_a_tiny_batch_is_told_with_a_larger_one_that_was_tried(judged, data):
    verdict = judged(data, "--batch-size", 2)
    assert verdict["kind"] == "small batch"
    assert "--batch-size 8" in verdict["fix"]
    assert verdict["gain"] > 1.3


@pytest.mark.slow
def test_a_host_that_sleeps_inside_a_stage_is_seen(judged, data, monkeypatch):
    monkeypatch.setattr(PlantNetwork, "forward", waiting(PlantNetwork.forward, times=10))
    verdict = judged(data, "--batch-size", 8)
    assert verdict["kind"] == "host synchronization"


@pytest.mark.slow
def test_a_slow_disk_is_seen_behind_loader_processes(judged, data, monkeypatch):
    monkeypatch.setattr(training.loading.data, "PictureStore", SlowStore)
    verdict = judged(data, "--batch-size", 8, "--workers", 1)
    assert verdict["kind"] == "slow storage"
    assert "its one process is only" in verdict["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 4])
def test_one_worker_that_decodes_all_the_time_needs_help(judged, heavy_data, cores, monkeypatch):
    monkeypatch.setattr(training.monitor.usage, "cores_available", lambda: cores)
    verdict = judged(heavy_data, "--batch-size", 4, "--workers", 1)
    assert verdict["gain"] > 1.2
    if cores == 1:
        assert verdict["kind"] == "too few cores"
        assert "prepare.py pack --short-side-px 40" in verdict["fix"]
    else:
        assert verdict["kind"] == "too few workers"
        assert verdict["fix"].startswith(("--workers 2 ", "--workers 3 ", "--workers 4 "))


@pytest.mark.slow
def test_checkpoints_that_are_written_too_often_are_told(judged, data, monkeypatch):
    monkeypatch.setattr(CheckpointFolder, "save", late(CheckpointFolder.save, seconds=0.3))
    verdict = judged(data, "--batch-size", 8, "--checkpoint-every-steps", 1)
    assert verdict["kind"] == "checkpoints"
    assert verdict["fix"].startswith("--checkpoint-every-steps ")


@pytest.mark.slow
def test_a_run_without_faults_is_left_alone(judged, data):
    verdict = judged(data, "--batch-size", 16, "--picture-px", 96, architecture="efficientnet_b0")
    assert verdict["kind"] == "balanced"
    assert verdict["fix"] == ""
