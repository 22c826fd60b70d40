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
from training.export import Export, export
from training.recipe import check_stored_recipe, read_recipe


@pytest.fixture(scope="module")
def with_weights(finished_run, data, tmp_path_factory):
    """A bundle that a training can start from."""
    folder = tmp_path_factory.mktemp("with weights") / "bundle"
    return export(Export(checkpoint=finished_run / "last.pt", data=data, out=folder, with_weights=True))


def loaded(folder, keys):
    """A network with the weights of a bundle, and what was loaded."""
    torch.manual_seed(6)
    network = PlantNetwork("test_efficientnet", len(keys))
    return network, load_weights(network, str(folder), keys)


def test_the_bundle_holds_the_weights_and_their_hash(with_weights, bundle):
    path = with_weights.weights_path()
    assert with_weights.record.files[WEIGHTS_FILE] == file_sha256(path)
    assert load_bundle(with_weights.folder).warnings == ()
    assert "--with-weights" in (with_weights.folder / "MODEL_CARD.md").read_text()
    assert not (bundle.folder / WEIGHTS_FILE).exists()


def test_the_weights_are_those_that_were_exported_under_the_names_of_timm(with_weights, finished_run):
    exported = read_checkpoint(finished_run / "last.pt").eval_weights
    network = timm.create_model("test_efficientnet", num_classes=3)
    network.load_state_dict(load_file(with_weights.weights_path()))
    assert all(torch.equal(value, exported[f"timm_model.{name}"]) for name, value in network.state_dict().items())


def test_a_training_starts_from_the_bundle(with_weights, finished_run, data, tmp_path):
    flags = ("--backbone-lr", 1e-12, "--head-lr", 1e-12, "--max-steps", 1)
    run = run_training(data, tmp_path / "run", "--weights", with_weights.folder, *flags)
    found, exported = (read_checkpoint(each / "last.pt") for each in (run, finished_run))
    assert found.initial_weights == "weights from bundle data 1.0.0"
    for name, value in found.network.items():
        if name.endswith(".weight"):
            assert torch.allclose(value, exported.eval_weights[name], atol=1e-6), name


def test_a_bundle_is_the_recipe_that_it_was_trained_by(bundle, finished_run):
    trained = check_stored_recipe(read_checkpoint(finished_run / "last.pt").recipe, "the checkpoint")
    found = read_recipe(bundle.folder)
    assert (found.schedule, found.augment, found.network) == (trained.schedule, trained.augment, trained.network)


def test_outputs_of_the_bundle_keep_their_rows(with_weights):
    keys = (*with_weights.taxonomy.output_keys[::-1], *make_taxonomy(2).output_keys)
    network, note = loaded(with_weights.folder, keys)
    assert (
        note
        == "weights from bundle data 1.0.0; 3 of 5 rows of the classifier matched by key; the rest starts at random"
    )
    rows = load_file(with_weights.weights_path())["classifier.weight"]
    assert torch.equal(network.head.weight[:3], rows.flip(0))


def test_a_bundle_without_weights_says_how_to_get_them(bundle, data, tmp_path):
    with pytest.raises(BundleError, match=r"no weights that a training can start from.*--with-weights"):
        run_training(data, tmp_path / "run", "--weights", bundle.folder)
    assert not (tmp_path / "run").exists()


def test_damaged_weights_are_not_trained_on(with_weights, tmp_path):
    copy = shutil.copytree(with_weights.folder, tmp_path / "bundle")
    path = copy / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(BundleError, match=r"SHA-256 of weights.safetensors"):
        loaded(copy, with_weights.taxonomy.output_keys)


def test_an_older_reader_ignores_the_part(with_weights, monkeypatch):
    monkeypatch.setattr("models.bundle.KNOWN_PARTS", KNOWN_PARTS - {WEIGHTS_PART})
    found = load_bundle(with_weights.folder)
    assert found.warnings == ("This version does not know the bundle part 'weights' and ignores it.",)
    assert msgspec.structs.replace(found, warnings=()) == with_weights
