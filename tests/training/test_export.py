import json

import numpy as np
import onnx
import pytest
import torch
from msgspec.structs import replace

from models.bundle import load_bundle
from models.errors import BundleError, DataError, RecipeError
from models.network import PlantNetwork
from models.preprocess import picture_to_input
from tests.make import cases
from tests.training.small import prepare_folder
from training.dataset.manifest import Manifest
from training.engine.checkpoint import read_checkpoint
from training.export import _named, _picture_sets, export
from training.fit.names import fit_temperature
from training.fit.onnx_file import fold_batch_norm, round_to_half
from training.fit.pictures import bundle_network, pictures_of, run
from training.fit.provenance import OTHER_DATA
from training.fit.record import recipe_without_folders
from training.loading.shards import Pack, pack


def test_what_is_sealed_can_be_loaded_and_was_measured(bundle):
    loaded = load_bundle(bundle.folder)
    record, network = loaded.record, loaded.network("fp32")
    assert (record.name, record.version) == ("data", "1.0.0")
    assert (record.architecture.num_outputs, record.architecture.num_features) == (3, 256)
    assert network.stored_as == "float16"
    assert 0.05 <= network.temperature <= 20
    assert all(check.passed and check.num_pictures == 3 for check in network.checks)
    parity, rounding = network.checks
    assert parity.value < 1e-7 < rounding.value  # of the weights, without which the two differ by their last bits
    assert (record.input.height, record.input.train_px) == (32, 32)
    assert record.recipe["network"]["architecture"] == "test_efficientnet"


def test_every_share_in_the_bundle_carries_data_number_and_interval(bundle):
    metrics = {metric.name: metric for metric in bundle.record.metrics}
    left_out = {"left_out_auroc", "left_out_named_species"}
    assert {"top1_output", "top1_taxon", "top5_taxon", "macro_top1_taxon", "ece", "nll"} | left_out == set(metrics)
    for name, metric in metrics.items():
        assert metric.num_pictures == 3
        assert metric.data.startswith("data, validation split, each plant" if name in left_out else "data, test split")
        assert (metric.interval_95 is not None) == (name not in {"nll", "left_out_auroc"})


def test_the_bundle_answers_as_the_moving_average_of_the_weights(bundle, finished_run, manifest):
    checkpoint = read_checkpoint(finished_run / "last.pt")
    data = manifest.path(0).read_bytes()
    pixels, _ = picture_to_input(data, bundle.record.input)
    served = bundle.open_session("fp32").run(pixels[None])
    found = {}
    for name in ("ema", "network"):
        network = PlantNetwork("test_efficientnet", 3)
        network.load_state_dict(getattr(checkpoint, name))
        network.eval()
        fold_batch_norm(network, bundle.record.input)
        round_to_half(network)
        with torch.no_grad():
            found[name] = network(torch.from_numpy(pixels)[None]).numpy()
    assert np.abs(served.logits - found["ema"]).max() < 1e-4
    assert np.abs(served.logits - found["network"]).max() > 1e-3


def test_sources_and_licenses_are_in_bundle_and_card(bundle):
    (source,) = bundle.record.sources
    assert (source.num_pictures, source.licenses, source.note) == (
        30,
        {"unknown": 30},
        "Drawn.",
    )  # training pictures only
    card = (bundle.folder / "MODEL_CARD.md").read_text()
    for text in (
        "# data 1.0.0",
        "Names 3 plants: test_efficientnet, trained with 30 pictures.",
        "Rosa rubra",
        "30 unknown",
        "Drawn.",
        "95 % interval",
        "test_efficientnet",
    ):
        assert text in card


def test_a_ban_on_commercial_use_reaches_bundle_and_card(other_bundle):
    (source,) = other_bundle.record.sources
    assert source.commercial_use == "not_allowed"
    assert set(source.licenses) == {"CC-BY-NC-4.0"}
    assert "May not be used commercially" in (other_bundle.folder / "MODEL_CARD.md").read_text()


def test_the_temperature_is_fitted_on_the_calibration_split_where_there_is_one(other_bundle, other_data):
    calibration = pictures_of(Manifest(other_data), "calibration", other_bundle.record.input, workers=0)
    found = fit_temperature(run(bundle_network(other_bundle, "fp32"), calibration), other_bundle.taxonomy)
    assert other_bundle.network("fp32").temperature == pytest.approx(found)
    assert other_bundle.calibration("fp32").fitted_on.num_pictures == len(calibration) > 3


def test_a_folder_that_exists_is_refused(exporting, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(BundleError, match="already exists"):
        export(replace(exporting, out=tmp_path / "there"))
    assert not list((tmp_path / "there").iterdir())


def test_data_with_other_outputs_is_refused(exporting, pictures, tmp_path):
    prepare_folder(pictures, tmp_path / "other", source="other")
    with pytest.raises(DataError, match="different outputs"):
        export(replace(exporting, data=tmp_path / "other"))
    assert not exporting.out.parent.exists()


def test_a_file_with_other_probabilities_than_pytorch_is_never_sealed(exporting, monkeypatch):
    monkeypatch.setattr("training.fit.networks.PARITY_LIMIT", 1e-12)
    with pytest.raises(
        BundleError, match=r"and PyTorch give different probabilities.* on 3 pictures; expected at most 1e-12"
    ):
        export(exporting)
    assert not exporting.out.parent.exists() or not list(exporting.out.parent.iterdir())


def test_pytorch_runs_a_sample_of_the_validation_pictures_and_the_card_says_so(other_bundle):
    for check in other_bundle.network("fp32").checks:
        assert (check.passed, check.num_pictures) == (True, 2)
    said = f"data, validation split ({OTHER_DATA}), 2 pictures drawn at random (seed 0)"
    assert said in other_bundle.network("fp32").checks[0].name
    assert said in (other_bundle.folder / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        *(("thresholds", (word,), "thresholds") for word in ("order=0.5", "genus", "genus=1.5", "genus=nan")),
        *(("precision", value, "a bundle needs fp32.*add fp32 to --precision") for value in ((), ("fp16",))),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_done(flag, value, message, exporting):
    with pytest.raises(RecipeError, match=message):
        export(replace(exporting, **{flag: value}))
    assert not exporting.out.parent.exists()


@pytest.mark.slow
def test_shards_may_lie_where_the_training_read_them(exporting, data, tmp_path, monkeypatch):
    packed, elsewhere = tmp_path / "packed", tmp_path / "elsewhere"
    pack(Pack(data=data, out=packed, workers=1))
    elsewhere.mkdir()
    for shard in packed.glob("*.tar"):
        shard.rename(elsewhere / shard.name)
    checkpoint = read_checkpoint(exporting.checkpoint)
    recipe = checkpoint.recipe | {"data": checkpoint.recipe["data"] | {"shards": str(elsewhere)}}
    monkeypatch.setattr("training.engine.checkpoint.read_checkpoint", lambda _: replace(checkpoint, recipe=recipe))
    sealed = export(replace(exporting, data=packed))
    assert load_bundle(sealed.folder).network("fp32").checks[0].num_pictures == 3


@pytest.mark.parametrize(("others", "version"), cases(__file__, "versions"))
def test_the_model_is_named_after_its_data_and_the_version_rises(others, version, exporting):
    for number, (name, sealed) in enumerate(others):
        folder = exporting.out.parent / str(number)
        folder.mkdir(parents=True)
        (folder / "bundle.json").write_text(json.dumps({"name": name, "version": sealed}))
    named = _named(exporting)
    assert (named.name, named.model_version) == ("data", version)
    given = replace(exporting, name="mine", model_version="2.1")
    assert (_named(given).name, _named(given).model_version) == ("mine", "2.1")


def test_a_corrected_name_reaches_the_bundle_without_training(other_bundle, manifest):
    assert other_bundle.record.label_hash == manifest.taxonomy.label_hash
    assert "Rosa rubiginosa" in (other_bundle.folder / "MODEL_CARD.md").read_text()


def test_the_record_keeps_only_the_last_part_of_absolute_paths(bundle, data, finished_run):
    recipe = bundle.record.recipe
    assert (recipe["data"]["data"], recipe["run"]["run"]) == (data.name, finished_run.name)
    for name in ("bundle.json", "MODEL_CARD.md"):
        content = (bundle.folder / name).read_text()
        assert not [place for place in (data, finished_run) if str(place.parent) in content]


def test_card_and_record_say_what_the_network_started_from(bundle):
    assert bundle.record.initial_weights == "all weights start at random"
    assert "Start of the training: all weights start at random." in (bundle.folder / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize(("epoch", "num_done", "side_px"), [(1, 0, 48), (1, 4, 64), (2, 0, 64)])
def test_the_bundle_has_the_size_of_the_last_pictures_it_was_trained_on(
    epoch, num_done, side_px, finished_run, exporting
):
    checkpoint = read_checkpoint(finished_run / "last.pt")
    sizes = {"picture_px": 64, "progressive": [[0, 48], [1, 64]]}
    recipe = checkpoint.recipe | {"pictures": checkpoint.recipe["pictures"] | sizes}
    position = checkpoint.position | {"epoch": epoch, "pictures": num_done}
    stopped = replace(checkpoint, recipe=recipe, position=position)
    assert _picture_sets(exporting, stopped).validation.spec.train_px == side_px


def test_the_paths_of_a_recipe_are_cut_at_any_depth():
    recipe = {"network": {"weights": "/data/last.pt"}, "negatives": {"negatives": ["/data/things", "more"]}, "seed": 3}
    cut = {"network": {"weights": "last.pt"}, "negatives": {"negatives": ["things", "more"]}, "seed": 3}
    assert recipe_without_folders(recipe) == cut


def test_the_file_states_the_sizes_of_pictures_within_the_network(bundle):  # the service decides by them
    graph = onnx.load(bundle.network_path("fp32")).graph
    shapes = [value.type.tensor_type.shape.dim for value in graph.value_info]
    pictures = [shape for shape in shapes if len(shape) == 4]
    assert pictures
    assert all(dim.dim_value for shape in pictures for dim in shape[2:])
