import json
import subprocess
import sys

import msgspec
import numpy as np
import onnx
import pytest
import torch
import tyro
from PIL import Image

from models.answer import Question, answer_plant
from models.bundle import load_bundle
from models.errors import BundleError, DataError, RecipeError
from models.golden import check_golden
from models.network import PlantNetwork
from models.preprocess import picture_to_input
from models.verdict import Promises
from tests.training.small import write_pictures
from training.bundling import bundle_description
from training.bundling.calibration import fit_temperature
from training.bundling.onnx_file import fold_batch_norm, round_to_half
from training.bundling.precisions.fp16 import write_rounded
from training.dataset.manifest import Manifest
from training.engine.checkpoint import read_checkpoint
from training.export import Export, GivenThresholds, export
from training.loading.shards import Pack, pack
from training.prepare import Folder, prepare


@pytest.fixture
def exporting(finished_run, data, tmp_path):
    return Export(checkpoint=finished_run / "last.pt", data=data, out=tmp_path / "parent" / "bundle", workers=0)


def test_what_is_sealed_can_be_loaded_and_was_measured(bundle):
    loaded = load_bundle(bundle.folder)
    record, network = loaded.record, loaded.network("fp32")
    assert record.name == "tiny"
    assert (record.architecture.num_outputs, record.architecture.num_features) == (3, 256)
    assert network.stored_as == "float16"
    assert 0.05 <= network.temperature <= 20
    assert all(check.passed and check.num_pictures == 3 for check in network.checks)
    assert network.checks[0].value < 1e-4
    assert (record.input.height, record.input.train_px) == (32, 32)
    assert record.recipe["network"]["architecture"] == "test_efficientnet"


def test_every_share_in_the_bundle_carries_data_number_and_interval(bundle):
    metrics = {metric.name: metric for metric in bundle.record.metrics}
    assert {"top1_output", "top1_taxon", "top5_taxon", "macro_top1_taxon", "ece", "nll"} == set(metrics)
    for name, metric in metrics.items():
        assert metric.num_pictures == 3
        assert metric.data == "data, test split"
        assert (metric.interval_95 is not None) == (name != "nll")


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
    for text in ("# tiny 1.0.0", "Rosa rubra", "30 unknown", "Drawn.", "95 % interval", "test_efficientnet"):
        assert text in card


@pytest.fixture(scope="module")
def restricted(pictures, tmp_path_factory):
    """The same pictures under a license that forbids commercial use, with a calibration split."""
    folder = tmp_path_factory.mktemp("restricted") / "data"
    prepare(Folder(pictures=pictures, out=folder, license="CC BY-NC 4.0", calibration_share=0.2, workers=1))
    return folder


def test_a_ban_on_commercial_use_reaches_bundle_and_card(exporting, restricted):
    bundle = export(msgspec.structs.replace(exporting, data=restricted, other_data=True))
    (source,) = load_bundle(bundle.folder).record.sources
    assert source.commercial_use == "not_allowed"
    assert set(source.licenses) == {"CC-BY-NC-4.0"}
    assert "May not be used commercially" in (bundle.folder / "MODEL_CARD.md").read_text()


def test_the_temperature_is_fitted_on_the_calibration_split_where_there_is_one(exporting, restricted, monkeypatch):
    fitted_on = []

    def note_labels(logits, labels, taxonomy, plants):
        fitted_on.append(labels.tolist())
        return fit_temperature(logits, labels, taxonomy, plants)

    monkeypatch.setattr("training.bundling.precisions.evaluated_network.fit_temperature", note_labels)
    export(msgspec.structs.replace(exporting, data=restricted, other_data=True))
    manifest = Manifest(restricted)
    assert fitted_on == [manifest.labels[manifest.rows_of("calibration")].tolist()]
    assert len(fitted_on[0]) > len(manifest.rows_of("validation"))


def test_the_card_says_what_calibrated_the_network_and_draws_its_reliability(bundle):
    card = (bundle.folder / "MODEL_CARD.md").read_text()
    assert "fitted on 3 pictures of 3 plants (data, validation split" in card
    assert "These are few" in card
    assert "Reliability, all test pictures" in card
    assert "genus: named from a score of" in card
    assert "Area under the risk-coverage curve" in card
    assert "python training/export.py --checkpoint last.pt --data data --out tiny --note Drawn. --workers 0\n" in card


def test_thresholds_are_fitted_and_can_be_given(exporting, bundle):
    assert bundle.network("fp32").promises == Promises()  # 3 calibration pictures prove nothing
    given = export(msgspec.structs.replace(exporting, thresholds=GivenThresholds(genus=0.875)))
    fitted, found = (each.network("fp32").thresholds for each in (bundle, given))
    assert (found.species, found.genus) == (fitted.species, 0.875)


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """24 pictures without a plant: noise in gray."""
    folder = tmp_path_factory.mktemp("things")
    for number in range(24):
        gray = np.random.default_rng(number).integers(0, 255, (48, 48), dtype=np.uint8)
        Image.fromarray(gray).save(folder / f"{number}.png")
    (folder / "cut.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def rejecting(finished_run, data, things, tmp_path_factory):
    out = tmp_path_factory.mktemp("rejecting") / "bundle"
    return export(Export(checkpoint=finished_run / "last.pt", data=data, out=out, workers=0, negatives=(things,)))


def test_every_bundle_has_tables_and_says_what_they_were_fitted_on(bundle):
    tables = bundle.calibration("fp32")
    assert (tables.fitted_on.num_plants, tables.fitted_on.num_pictures, tables.fitted_on.num_negatives) == (3, 3, 0)
    assert tables.fitted_on.data == "data, validation split"
    assert tables.plant_head is None
    assert len(tables.conformal.conformity_N) == 3
    assert tables.features.mean_TD.shape == (3, 2)  # 3 taxa, one dimension less


def test_pictures_of_other_things_give_a_plant_head_and_its_figures(rejecting):
    tables = rejecting.calibration("fp32")
    assert tables.plant_head.weight_F.shape == (256,)
    assert tables.fitted_on.num_negatives == 24  # the broken one is left out
    metrics = {metric.name: metric for metric in rejecting.record.metrics}
    assert metrics["things_accepted"].num_pictures == 24
    assert 0 <= metrics["things_named"].value <= metrics["things_accepted"].value <= 1
    assert "on 24 pictures without a plant; its cutoff" in (rejecting.folder / "MODEL_CARD.md").read_text()


def test_the_sealed_tables_answer_as_a_verdict(rejecting, manifest, things):
    model, session = rejecting.answer_model("fp32"), rejecting.open_session("fp32")
    for path in (manifest.path(0), things / "0.png"):
        pixels, _ = picture_to_input(path.read_bytes(), rejecting.record.input)
        found = session.run(pixels[None])
        answer = answer_plant(found.logits, found.features, model, Question(coverage=0.9))
        assert 0 <= answer.plant_score <= 1
        assert answer.candidates.taxa


def test_too_few_pictures_of_other_things_are_refused(exporting, things, tmp_path):
    few = tmp_path / "few"
    few.mkdir()
    for number in range(3):
        (few / f"{number}.png").write_bytes((things / f"{number}.png").read_bytes())
    with pytest.raises(DataError, match=r"too few pictures.*3 of 3.*at least 20"):
        export(msgspec.structs.replace(exporting, negatives=(few,)))


def test_a_folder_that_exists_is_refused(exporting, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(BundleError, match="already exists"):
        export(msgspec.structs.replace(exporting, out=tmp_path / "there"))
    assert not list((tmp_path / "there").iterdir())


def test_data_with_other_outputs_is_refused(exporting, pictures, tmp_path):
    prepare(Folder(pictures=pictures, out=tmp_path / "other", source="other", workers=1))
    with pytest.raises(DataError, match="different outputs"):
        export(msgspec.structs.replace(exporting, data=tmp_path / "other"))
    assert not exporting.out.parent.exists()


@pytest.mark.parametrize("half_storage", [False, True])
def test_a_file_with_other_probabilities_than_pytorch_is_never_sealed(half_storage, exporting):
    with pytest.raises(BundleError, match=r"and PyTorch give different probabilities.*expected at most 1e-12"):
        export(msgspec.structs.replace(exporting, parity_limit=1e-12, half_storage=half_storage))
    assert not exporting.out.parent.exists() or not list(exporting.out.parent.iterdir())


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"serve_px": 8}, {"parity_limit": 0.0}])
def test_a_flag_out_of_range_is_refused_before_anything_is_done(wrong, exporting):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        export(msgspec.structs.replace(exporting, **wrong))
    assert not exporting.out.parent.exists()


@pytest.mark.slow
def test_shards_may_lie_elsewhere(exporting, data, tmp_path):
    packed, elsewhere = tmp_path / "packed", tmp_path / "elsewhere"
    pack(Pack(data=data, out=packed, workers=1))
    elsewhere.mkdir()
    for shard in packed.glob("*.tar"):
        shard.rename(elsewhere / shard.name)
    sealed = export(msgspec.structs.replace(exporting, data=packed, shards=str(elsewhere)))
    assert load_bundle(sealed.folder).network("fp32").checks[0].num_pictures == 3


def test_full_storage_needs_no_rounding(exporting):
    sealed = export(msgspec.structs.replace(exporting, half_storage=False, name="mine", model_version="2.1"))
    assert (sealed.record.name, sealed.record.version) == ("mine", "2.1")
    assert sealed.network("fp32").stored_as == "float32"
    assert len(sealed.network("fp32").checks) == 1


def test_the_bundle_is_served_without_torch(bundle, manifest):
    code = (
        "import json, sys; from pathlib import Path; from models.bundle import load_bundle; "
        "from models.preprocess import picture_to_input; "
        "bundle = load_bundle(Path(sys.argv[1])); "
        "pixels, _ = picture_to_input(Path(sys.argv[2]).read_bytes(), bundle.record.input); "
        "found = bundle.open_session('fp32').run(pixels[None]); "
        "print(json.dumps([list(found.logits.shape), list(found.features.shape), 'torch' in sys.modules]))"
    )
    arguments = [sys.executable, "-c", code, str(bundle.folder), str(manifest.path(0))]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [[1, 3], [1, 256], False]


def test_a_corrected_name_reaches_the_bundle_without_training(exporting, data, tmp_path):
    corrected = tmp_path / "data"
    corrected.mkdir()
    (corrected / "manifest.parquet").write_bytes((data / "manifest.parquet").read_bytes())
    taxa = (data / "taxa.json").read_text().replace('"Rosa rubra"', '"Rosa rubiginosa"')
    (corrected / "taxa.json").write_text(taxa)
    sealed = export(msgspec.structs.replace(exporting, data=corrected))
    assert sealed.record.label_hash == Manifest(data).taxonomy.label_hash
    assert "Rosa rubiginosa" in (sealed.folder / "MODEL_CARD.md").read_text()


# ---- several precisions


@pytest.fixture(scope="module")
def all_three(finished_run, data, tmp_path_factory):
    """Every precision, evaluated on three pictures: too few for int8 to pass."""
    return export(
        Export(
            checkpoint=finished_run / "last.pt",
            data=data,
            out=tmp_path_factory.mktemp("all") / "bundle",
            precision=("int8", "fp32", "fp16"),
            calibration_pictures=8,
            workers=0,
        )
    )


@pytest.fixture
def lenient(monkeypatch):
    """Checks that a tiny network can pass on three pictures."""
    for check, limit in {"MOST_LOSS": 1.1, "LEAST_SPEEDUP": 0.0}.items():
        monkeypatch.setattr(f"training.bundling.precisions.checks.{check}", limit)


def test_only_fp32_is_made_unless_more_is_asked_for(bundle):
    assert set(bundle.record.networks) == {"fp32"}
    assert bundle.record.left_out == {}


def test_a_precision_that_fails_a_check_is_left_out_and_its_figures_are_kept(all_three):
    assert set(all_three.record.networks) == {"fp32", "fp16"}
    assert not list(all_three.folder.glob("*int8*"))
    left_out = load_bundle(all_three.folder).record.left_out["int8"]
    loss, speed, size = left_out.checks
    assert not loss.passed
    assert "loss: top-1 by taxon" in loss.name
    assert (loss.num_pictures, loss.limit) == (3, 0.005)
    assert loss.value > 0.2
    assert speed.at_least
    assert speed.value > 0
    assert 0.0 < size.value < 3.0
    assert {metric.name for metric in left_out.metrics} >= {"top1_taxon", "nll", "top1_taxon_lost_against_fp32"}
    assert "calibrated on 8 training pictures" in left_out.note


def test_each_precision_has_its_own_temperature_checks_and_metrics(all_three):
    single, half = (all_three.network(precision) for precision in ("fp32", "fp16"))
    assert (half.file, half.stored_as) == ("model.fp16.onnx", "float16")
    assert half.temperature == pytest.approx(single.temperature, rel=0.05)
    assert half.temperature != single.temperature
    overflow, agreement = half.checks
    assert (overflow.value, overflow.limit, overflow.passed) == (0, 0, True)
    assert (agreement.value, agreement.limit, agreement.at_least, agreement.num_pictures) == (1.0, 0.999, True, 6)
    shares = {metric.name: metric for metric in half.metrics}
    assert shares["top1_taxon"].num_pictures == 3
    assert shares["top1_taxon_lost_against_fp32"].value == 0


def test_every_network_of_a_bundle_opens_and_answers_its_golden_picture(all_three):
    golden = all_three.golden()
    assert set(golden.logits) == {"fp32", "fp16"}
    pixels, _ = picture_to_input(golden.picture, all_three.record.input)
    for precision, network in all_three.record.networks.items():
        logits = all_three.open_session(precision).run(pixels[None]).logits[0]
        check_golden(golden, precision, logits, network.temperature)


def test_network_files_hold_no_paths_of_the_machine_that_wrote_them(all_three):
    for path in all_three.folder.glob("*.onnx"):
        content = path.read_bytes()
        for trace in (b"stack_trace", b"site-packages", b"/tmp", str(all_three.folder).encode()):
            assert trace not in content, path.name


def test_the_record_keeps_only_the_last_part_of_absolute_paths(bundle, data, finished_run):
    recipe = bundle.record.recipe
    assert (recipe["data"]["data"], recipe["run"]["run"]) == (data.name, finished_run.name)
    for name in ("bundle.json", "MODEL_CARD.md"):
        content = (bundle.folder / name).read_text()
        assert not [place for place in (data, finished_run) if str(place.parent) in content]


def test_the_paths_of_a_recipe_are_cut_at_any_depth():
    recipe = {"network": {"weights": "/data/last.pt"}, "negatives": {"negatives": ["/data/things", "more"]}, "seed": 3}
    cut = {"network": {"weights": "last.pt"}, "negatives": {"negatives": ["things", "more"]}, "seed": 3}
    assert bundle_description._without_folders(recipe) == cut


def test_the_file_states_the_sizes_of_pictures_within_the_network(bundle):  # the service decides by them
    graph = onnx.load(bundle.network_path("fp32")).graph
    shapes = [value.type.tensor_type.shape.dim for value in graph.value_info]
    pictures = [shape for shape in shapes if len(shape) == 4]
    assert pictures
    assert all(dim.dim_value for shape in pictures for dim in shape[2:])


def test_int8_is_sealed_if_it_passes_its_checks(exporting, lenient, capsys):
    sealed = export(msgspec.structs.replace(exporting, precision=("fp32", "int8"), calibration_pictures=8))
    network = load_bundle(sealed.folder).network("int8")
    assert (network.file, network.stored_as) == ("model.int8.onnx", "int8")
    assert all(check.passed for check in network.checks)
    assert sealed.record.left_out == {}
    assert set(sealed.golden().logits) == {"fp32", "int8"}
    answers = [sealed.open_session(name).run(np.zeros((2, 3, 32, 32), np.float32)) for name in ("fp32", "int8")]
    assert answers[0].features.shape == answers[1].features.shape == (2, 256)
    assert not np.array_equal(answers[0].logits, answers[1].logits)
    assert "int8: temperature" in capsys.readouterr().out


@pytest.mark.slow
def test_further_data_is_measured_too_and_both_are_reported(exporting, data, tmp_path, lenient):
    more, drawn = tmp_path / "more", write_pictures(tmp_path / "drawn", per_class=24)
    for seen in [path for path in drawn.rglob("*.jpg") if int(path.stem) < 12]:
        seen.unlink()
    prepare(
        Folder(pictures=drawn, out=more, source=Manifest(data).taxonomy.outputs[0].source, test_share=0.5, workers=1)
    )
    sealed = export(
        msgspec.structs.replace(exporting, precision=("fp32", "int8"), calibration_pictures=8, judge_on=more)
    )
    counts = {"data, test split": 3, "more, test split": len(Manifest(more).rows_of("test"))}
    assert counts["more, test split"] > 3
    for metrics in (sealed.record.metrics, sealed.network("int8").metrics):
        assert {metric.data: metric.num_pictures for metric in metrics} == counts
    ends = [check.name for check in sealed.network("int8").checks if check.name.startswith("loss")]
    assert ["lower end" in ends[0], "upper end" in ends[1]] == [True, True]
    assert ends[1].endswith("more, test split")


def test_further_data_that_may_be_training_data_is_refused(exporting, pictures, tmp_path):
    again = tmp_path / "again"
    prepare(Folder(pictures=pictures, out=again, source="flowers", test_share=0.5, workers=1))
    count = len(Manifest(again).rows_of("test"))
    with pytest.raises(DataError, match=rf"are in .* too \(got {count} of its {count} test pictures.*give other data"):
        export(msgspec.structs.replace(exporting, judge_on=again))
    with pytest.raises(DataError, match="3 of its 3 test pictures"):
        export(msgspec.structs.replace(exporting, judge_on=exporting.data))


def test_fp16_that_overflows_is_left_out_without_metrics(exporting, monkeypatch):
    def overflow(single, target):
        write_rounded(single, target)
        model = onnx.load(target)
        weight = next(each for each in model.graph.initializer if each.name.endswith("classifier.weight"))
        weight.CopyFrom(onnx.numpy_helper.from_array(np.full(weight.dims, np.inf, np.float32), weight.name))
        onnx.save(model, target)

    monkeypatch.setattr("training.bundling.precisions.candidates.write_rounded", overflow)
    sealed = export(msgspec.structs.replace(exporting, precision=("fp32", "fp16")))
    left_out = load_bundle(sealed.folder).record.left_out["fp16"]
    (check,) = left_out.checks
    assert (check.passed, check.value) == (False, check.num_pictures)
    assert left_out.metrics == ()
    assert set(sealed.record.networks) == {"fp32"}


@pytest.mark.parametrize("precision", [(), ("int8",), ("fp16", "int8")])
def test_a_bundle_without_fp32_is_refused_before_anything_is_done(precision, exporting):
    with pytest.raises(RecipeError, match=r"a bundle needs fp32.*add fp32 to --precision"):
        export(msgspec.structs.replace(exporting, precision=precision))
    assert not exporting.out.parent.exists()


def test_a_precision_that_does_not_exist_is_refused(exporting):
    with pytest.raises(RecipeError, match="precision"):
        export(msgspec.structs.replace(exporting, precision=("fp32", "fp8")))


def test_further_data_with_other_outputs_is_refused(exporting, pictures, tmp_path):
    prepare(Folder(pictures=pictures, out=tmp_path / "other", source="other", workers=1))
    with pytest.raises(DataError, match="different outputs"):
        export(msgspec.structs.replace(exporting, judge_on=tmp_path / "other"))


def test_the_command_line_takes_several_precisions():
    flags = "--checkpoint a.pt --data b --out c --precision fp32 int8 --judge-on d --calibration-pictures 9"
    command = tyro.cli(Export, args=flags.split())
    assert (command.precision, str(command.judge_on), command.calibration_pictures) == (("fp32", "int8"), "d", 9)
