"""Training with pictures that show no plant: an auxiliary output learns to tell plants, and a run resumes exactly."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from models.errors import CheckpointError
from models.network import PlantNetwork
from tests.training.small import finish, make_trainer, run_training, write_things
from training.engine.checkpoint import read_checkpoint
from training.engine.losses import WithPlantOutput, plant_figures, plant_loss
from training.evaluate import Evaluate, evaluate
from training.export import Export, export
from training.monitor.memory import OutOfMemory

FLAGS = ("--epochs", 1)


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    return write_things(tmp_path_factory.mktemp("negatives") / "things", count=24)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return write_things(tmp_path_factory.mktemp("unknown") / "plants", count=5, first=50)


@pytest.fixture(scope="module")
def uninterrupted(data, things, strangers, tmp_path_factory):
    flags = ("--negatives", things, "--unknown", strangers)
    return run_training(data, tmp_path_factory.mktemp("whole") / "run", *FLAGS, *flags)


@given(
    plants=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=6),
    others=st.lists(st.floats(-20, 20, width=32), max_size=6),
)
def test_both_halves_of_the_loss_have_equal_weights(plants, others):
    logits = torch.tensor(plants + others)
    halves = [(plants, 1.0), (others, 0.0)]
    parts = [
        binary_cross_entropy_with_logits(torch.tensor(half), torch.full((len(half),), target))
        for half, target in halves
        if half
    ]
    expected = float(sum(parts) / len(parts))
    assert float(plant_loss(logits, len(plants))) == pytest.approx(expected, abs=1e-5)
    loss, plants_told, others_told = plant_figures(logits, len(plants)).tolist()
    assert loss == pytest.approx(expected, abs=1e-5)
    assert plants_told == pytest.approx(sum(value > 0 for value in plants) / len(plants))
    assert others_told == pytest.approx(sum(value <= 0 for value in others) / len(others) if others else 1)


def test_the_output_is_one_more_score_beside_an_unchanged_network():
    torch.manual_seed(0)
    network = PlantNetwork("test_efficientnet", 3).eval()
    before = torch.random.get_rng_state()
    wrapped = WithPlantOutput(network, seed=0).eval()
    assert torch.equal(torch.random.get_rng_state(), before)
    pixels = torch.rand(2, 3, 32, 32)
    assert wrapped(pixels).shape == (2, 4)
    torch.testing.assert_close(wrapped(pixels)[:, :3], network(pixels))
    added = sum(p.numel() for p in wrapped.parameters()) - network.num_parameters()
    assert added == network.num_features + 1


def test_a_checkpoint_of_a_version_without_negatives_resumes(finished_run, data, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    for path in run.glob("*.pt"):
        content = torch.load(path, weights_only=True)
        del content["recipe"]["negatives"]
        torch.save(content, path)
    run_training(data, run, "--resume", "--epochs", 3)
    assert read_checkpoint(run / "last.pt").position["epoch"] == 3


def test_a_resume_with_other_pictures_of_no_class_is_refused(
    finished_run, uninterrupted, data, things, strangers, tmp_path
):
    others = write_things(tmp_path / "others", count=3)
    for run, flag, flags in [
        (finished_run, "--negatives", ("--negatives", things)),
        (finished_run, "--unknown", ("--unknown", strangers)),
        (uninterrupted, "--negatives", FLAGS),
        (uninterrupted, "--negatives", (*FLAGS, "--negatives", others, "--unknown", strangers)),
        (uninterrupted, "--unknown", (*FLAGS, "--negatives", things, "--unknown", others)),
    ]:
        with pytest.raises(CheckpointError, match=flag):
            run_training(data, run, *flags, "--resume")


def test_a_batch_that_does_not_fit_is_tried_with_all_its_negatives(data, things, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", "--batch-size", 12, "--negatives", things)
    network = trainer.engine.network
    original = network.features

    def full(pixels):
        if len(pixels) > 5:  # three plants and two others
            raise torch.OutOfMemoryError
        return original(pixels)

    network.features = full
    with pytest.raises(OutOfMemory, match=r"12 pictures of 32 px; 3 fit"):
        finish(trainer)


@pytest.mark.slow
def test_evaluation_and_export_know_only_the_network(uninterrupted, data, tmp_path):
    evaluate(Evaluate(checkpoint=uninterrupted / "last.pt", data=data, workers=0))
    export(Export(checkpoint=uninterrupted / "last.pt", data=data, out=tmp_path / "bundle", note="Drawn."))
    assert (tmp_path / "bundle" / "bundle.json").is_file()
