"""The precisions of an exported bundle and their release checks."""

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from models.bundle import check_golden, load_bundle
from models.errors import InputError
from models.openvino_session import OpenVinoSession
from models.preprocess import picture_to_input
from models.ranking import NAMES_ARE_GUESSES
from tests.models.test_session import HAS_BF16
from training.evaluate import Evaluate, evaluate
from training.export import export
from training.fit.onnx_file import write_rounded

WITH_BF16 = pytest.mark.skipif(not HAS_BF16, reason="needs OpenVINO and a processor with bfloat16")


def test_only_fp32_is_made_unless_more_is_asked_for(bundle):
    assert set(bundle.record.networks) == {"fp32"}
    assert bundle.record.left_out == {}


def test_each_precision_has_its_own_temperature_checks_and_metrics(rejecting):
    single, half = (rejecting.network(precision) for precision in ("fp32", "fp16"))
    assert (half.file, half.stored_as) == ("model.fp16.onnx", "float16")
    assert 0.5 < half.temperature / single.temperature < 2  # three pictures and random weights: rounding decides
    assert half.temperature != single.temperature
    assert half.thresholds.family == single.thresholds.family == 0.75
    overflow, agreement = half.checks
    assert (overflow.value, overflow.num_pictures, overflow.passed) == (0, 3 * 3 + 30 + 24 + 40, True)
    assert (agreement.value, agreement.limit, agreement.at_least, agreement.num_pictures) == (1.0, 0.999, True, 6)
    shares = {metric.name: metric for metric in half.metrics}
    assert shares["top1_taxon"].num_pictures == 3
    assert shares["top1_taxon_lost_against_fp32"].value == 0


def test_every_network_of_a_bundle_opens_and_answers_its_golden_picture(rejecting):
    golden = rejecting.golden()
    assert set(golden.logits) == {"fp32", "fp16"}
    pixels, _ = picture_to_input(golden.picture, rejecting.record.input)
    for precision, network in rejecting.record.networks.items():
        logits = rejecting.open_session(precision).run(pixels[None]).logits[0]
        check_golden(golden, precision, logits, network.temperature)


def test_network_files_hold_no_paths_of_the_machine_that_wrote_them(rejecting):
    for path in rejecting.folder.glob("*.onnx"):
        content = path.read_bytes()
        for trace in (b"stack_trace", b"site-packages", b"/tmp", str(rejecting.folder).encode()):
            assert trace not in content, path.name


def test_fp16_that_overflows_is_left_out_without_metrics(exporting, monkeypatch, capsys):
    def overflow(single, target):
        write_rounded(single, target)
        model = onnx.load(target)
        weight = next(each for each in model.graph.initializer if each.name.endswith("classifier.weight"))
        weight.CopyFrom(onnx.numpy_helper.from_array(np.full(weight.dims, np.inf, np.float32), weight.name))
        onnx.save(model, target)

    monkeypatch.setattr("training.fit.networks.write_rounded", overflow)
    sealed = export(replace(exporting, precision=("fp32", "fp16")))
    told = capsys.readouterr().out
    assert all(f"WARNING: {each}" in told for each in (f"{exporting.data} has no calibration split", NAMES_ARE_GUESSES))
    left_out = load_bundle(sealed.folder).record.left_out["fp16"]
    (check,) = left_out.checks
    # Three sets of three pictures: of the training pictures only the features are kept, and these are finite.
    assert (check.passed, check.value) == (False, 9)
    assert left_out.metrics == ()
    assert set(sealed.record.networks) == {"fp32"}


# ---- bf16


@WITH_BF16
def test_bf16_is_the_file_of_fp32_with_its_own_figures_and_opens_with_openvino(exporting, pictures, monkeypatch):
    monkeypatch.setattr("training.fit.networks.MOST_LOSS", 1.0)  # three pictures prove nothing
    sealed = export(replace(exporting, precision=("fp32", "bf16")))
    single, half = (sealed.network(precision) for precision in ("fp32", "bf16"))
    assert half.file == single.file
    assert 0.5 < half.temperature / single.temperature < 2  # three pictures and random weights: rounding decides
    loss, parity = half.checks
    assert (loss.limit, loss.passed, loss.num_pictures) == (1.0, True, 3)
    assert 0 < parity.value < 0.02
    golden = sealed.golden()
    pixels, _ = picture_to_input(golden.picture, sealed.record.input)
    session = sealed.open_session("bf16")
    assert isinstance(session, OpenVinoSession)
    check_golden(golden, "bf16", session.run(pixels[None]).logits[0], half.temperature)
    assert golden.logits["bf16"] != golden.logits["fp32"]
    assert sealed.calibration("bf16").fitted_on == sealed.calibration("fp32").fitted_on
    assert "## Checks of the bf16 network" in (sealed.folder / "MODEL_CARD.md").read_text()
    for module in ("models.bundle", "training.fit.pictures"):  # nothing is evaluated in single precision
        monkeypatch.delattr(f"{module}.OnnxSession")
    data = exporting.data
    evaluate(Evaluate(data=data, bundle=sealed.folder, precision="bf16", unknown=pictures, workers=0))


@WITH_BF16
def test_bf16_whose_loss_cannot_be_ruled_out_is_left_out(exporting):
    sealed = export(replace(exporting, precision=("fp32", "bf16")))
    loss, parity = sealed.record.left_out["bf16"].checks
    assert (loss.limit, loss.passed, parity.passed) == (0.005, False, True)
    assert 0.3 < loss.value < 1  # three pictures, all the same
    assert set(sealed.record.networks) == {"fp32"}


def test_bf16_that_cannot_be_computed_here_ends_the_export_before_it_starts(exporting, monkeypatch):
    monkeypatch.setattr("models.openvino_session.has_bf16", lambda: False)
    with pytest.raises(InputError, match="does not compute in bfloat16"):
        export(replace(exporting, precision=("fp32", "bf16")))
    assert not exporting.out.parent.exists()
