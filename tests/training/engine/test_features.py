"""A linear probe: each picture runs once through the frozen network, and only the classifier learns."""

from unittest.mock import patch

import numpy as np
import pytest
import torch

from models.atomic_file import write_bytes
from models.errors import RecipeError
from models.network import PlantNetwork
from tests.training.small import command, prepare_flowers, run_training, write_things
from training.dataset.manifest import Manifest
from training.engine.checkpoint import read_checkpoint
from training.engine.device import Ranks
from training.engine.features import stored_features
from training.fit.pictures import pictures_of
from training.loading.negatives import RunInput
from training.train import train

CPU = torch.device("cpu")


@pytest.fixture
def flags(tmp_path, data, finished_run):
    """Flags of a probe over its own copy of the data, whose folder takes the features."""
    added = "--negatives", write_things(tmp_path / "things"), "--unknown", write_things(tmp_path / "strange", 5, 100)
    probe = "--weights", finished_run / "last.pt", "--frozen-stages", "all", "--head-lr", 0.1, *added
    return prepare_flowers(tmp_path, 12), tmp_path / "probe", *probe


def weights_of(run):
    return read_checkpoint(run / "last.pt").network


def test_only_the_classifier_learns_and_a_second_run_computes_no_feature(flags, finished_run):
    run = run_training(*flags)
    before = read_checkpoint(finished_run / "last.pt").eval_weights
    learned = {name for name, value in weights_of(run).items() if not torch.equal(value, before[name])}
    assert learned == {"timm_model.classifier.weight", "timm_model.classifier.bias"}
    with patch.object(PlantNetwork, "features", side_effect=lambda rows: rows) as features:
        data, other, *rest = flags
        run_training(data, other.with_name("again"), *rest, "--head-lr", 0.01)
    assert {call.args[0].ndim for call in features.call_args_list} == {2}


def test_features_are_those_of_the_service_and_stand_beside_their_label(flags):
    recipe = command(*flags).recipe
    inputs, manifest, network = RunInput.of(recipe), Manifest(recipe.data.data), PlantNetwork("test_efficientnet", 3)
    found = stored_features(inputs, manifest, network, CPU, Ranks())
    rows = manifest.rows_of("validation")
    (pixels,) = pictures_of(manifest, "validation", inputs.spec, 0).pixels([])
    with torch.inference_mode():
        expected = network.eval().features(torch.from_numpy(pixels))
    values, labels = found.of(np.append(rows, [-1, -17]))
    torch.testing.assert_close(values[:-2], expected, rtol=2e-3, atol=2e-3)
    with torch.no_grad():
        next(network.parameters()).mul_(2)
    other = stored_features(inputs, manifest, network, CPU, Ranks())
    assert not np.array_equal(other.values, found.values), "those of other weights"
    assert labels.tolist() == [*manifest.labels[rows].tolist(), -1, -2]  # 12 things, then 5 plants of no class
    first, second, *_ = inputs.negatives.paths
    first.write_bytes(second.read_bytes())
    told = []

    def broadcast(_, value):
        told.append(value)
        return told[1 - len(told) % 2]  # that of the first rank

    with (
        patch.object(Ranks, "broadcast", broadcast),
        patch.object(Ranks, "maxima", lambda _, values: values),
        patch.multiple("training.engine.features", BATCH=8, PART_BATCHES=2),
    ):
        with pytest.raises(FileNotFoundError):  # of the parts of the other rank, for which nothing waits here
            stored_features(inputs, manifest, network, CPU, Ranks(0, 2))
        anew = stored_features(inputs, manifest, network, CPU, Ranks(1, 2))
    assert torch.equal(*anew.of(np.array([-1, -2]))[0]), "those of another folder with the same names"


@patch.multiple("training.engine.features", BATCH=8, PART_BATCHES=2)
def test_a_killed_run_goes_on_with_the_next_part_and_parts_of_plants_outlast_other_pictures(flags):
    data, run, *rest = flags
    written = []

    def write(path, content):
        written.append(path)
        if len(written) == 3:
            raise KeyboardInterrupt
        write_bytes(path, content)

    with patch("training.engine.features.write_bytes", write):
        with pytest.raises(KeyboardInterrupt):
            train(command(*flags))
        run_training(*flags, "--max-steps", 1)
        run_training(*flags, "--resume", "--weights", "moved.pt")
        things = rest[rest.index("--negatives") + 1]
        run_training(data, run.with_name("other"), *rest[:-1], things, "--max-steps", 1)
    assert (len(written), len({*written})) == (7, 6)  # the third part anew, and two of other pictures
    for path in data.glob("features-*/*"):
        path.unlink()
    with patch("training.engine.features.PART_BATCHES", 512):
        run_training(data, run.with_name("whole"), *rest)
    torch.testing.assert_close(weights_of(run), weights_of(run.with_name("whole")), rtol=0, atol=0)


def test_random_weights_are_not_probed(flags):
    with pytest.raises(RecipeError, match=r"freezes random weights.*--weights imagenet"):
        command(*flags, "--weights", "none")
