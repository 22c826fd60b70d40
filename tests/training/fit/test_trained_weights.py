import shutil

import msgspec
import pytest
import timm
import torch
from safetensors.torch import load_file

from models.bundle import KNOWN_PARTS, WEIGHTS_FILE, WEIGHTS_PART, file_sha256, load_bundle
from models.errors import BundleError
from models.network import PlantNetwork
from tests.training.small import make_taxonomy, run_training
from training.engine.checkpoint import read_checkpoint
from training.engine.weights import load_weights
from training.recipe import check_stored_recipe, read_recipe


def loaded(folder, keys):
    """A network with the weights of a bundle, and what was loaded."""
    torch.manual_seed(6)
    network = PlantNetwork("test_efficientnet", len(keys))
    return network, load_weights(network, str(folder), keys)


def test_the_bundle_holds_the_weights_and_their_hash(other_bundle, bundle):
    path = other_bundle.weights_path()
    assert other_bundle.record.files[WEIGHTS_FILE] == file_sha256(path)
    assert load_bundle(other_bundle.folder).warnings == ()
    assert "--with-weights" in (other_bundle.folder / "MODEL_CARD.md").read_text()
    assert not (bundle.folder / WEIGHTS_FILE).exists()


def test_the_weights_are_those_that_were_exported_under_the_names_of_timm(other_bundle, finished_run):
    exported = read_checkpoint(finished_run / "last.pt").eval_weights
    network = timm.create_model("test_efficientnet", num_classes=3)
    network.load_state_dict(load_file(other_bundle.weights_path()))
    assert all(torch.equal(value, exported[f"timm_model.{name}"]) for name, value in network.state_dict().items())


def test_a_training_starts_from_the_bundle(other_bundle, finished_run, data, tmp_path):
    flags = ("--backbone-lr", 1e-12, "--head-lr", 1e-12, "--max-steps", 1)
    run = run_training(data, tmp_path / "run", "--weights", other_bundle.folder, *flags)
    found, exported = (read_checkpoint(each / "last.pt") for each in (run, finished_run))
    assert found.initial_weights == "weights from bundle data 1.0.0"
    for name, value in found.network.items():
        if name.endswith(".weight"):
            assert torch.allclose(value, exported.eval_weights[name], atol=1e-6), name


def test_a_bundle_is_the_recipe_that_it_was_trained_by(bundle, finished_run):
    trained = check_stored_recipe(read_checkpoint(finished_run / "last.pt").recipe, "the checkpoint")
    found = read_recipe(bundle.folder)
    assert (found.schedule, found.augment, found.network) == (trained.schedule, trained.augment, trained.network)


def test_outputs_of_the_bundle_keep_their_rows(other_bundle):
    keys = (*other_bundle.taxonomy.output_keys[::-1], *make_taxonomy(2).output_keys)
    network, note = loaded(other_bundle.folder, keys)
    assert (
        note
        == "weights from bundle data 1.0.0; 3 of 5 rows of the classifier matched by key; the rest starts at random"
    )
    rows = load_file(other_bundle.weights_path())["classifier.weight"]
    assert torch.equal(network.head.weight[:3], rows.flip(0))


def test_a_bundle_without_weights_says_how_to_get_them(bundle, data, tmp_path):
    with pytest.raises(BundleError, match=r"no weights that a training can start from.*--with-weights"):
        run_training(data, tmp_path / "run", "--weights", bundle.folder)
    assert not (tmp_path / "run").exists()


def test_damaged_weights_are_not_trained_on(other_bundle, tmp_path):
    copy = shutil.copytree(other_bundle.folder, tmp_path / "bundle")
    path = copy / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(BundleError, match=r"SHA-256 of weights.safetensors"):
        loaded(copy, other_bundle.taxonomy.output_keys)


def test_an_older_reader_ignores_the_part(other_bundle, monkeypatch):
    monkeypatch.setattr("models.bundle.KNOWN_PARTS", KNOWN_PARTS - {WEIGHTS_PART})
    found = load_bundle(other_bundle.folder)
    assert found.warnings == ("This version does not know the bundle part 'weights' and ignores it.",)
    assert msgspec.structs.replace(found, warnings=()) == other_bundle
