"""The precisions of an exported bundle, their release checks, and the data that judges them."""

import msgspec
import numpy as np
import onnx
import pytest
import tyro

from models.bundle import check_golden, load_bundle
from models.errors import DataError, RecipeError
from models.preprocess import picture_to_input
from tests.training.small import write_pictures
from training.actions.export import export
from training.bundling.precisions.fp16 import write_rounded
from training.commands.export import Export
from training.dataset.manifest import Manifest
from training.prepare import Folder, prepare


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
