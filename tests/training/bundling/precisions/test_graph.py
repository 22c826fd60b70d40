"""Rewriting a graph changes neither its results nor its names."""

import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from models.errors import BotanifyError
from models.session import OnnxSession
from tests.training.bundling.precisions.graphs import kinds, metadata, write_graph
from training.bundling.precisions.graph import fold_constants, pool_means, restore_metadata

PIXELS = np.random.default_rng(1).normal(size=(3, 2, 4, 4)).astype(np.float32)


def run(path):
    return onnxruntime.InferenceSession(path).run(["logits"], {"pixels": PIXELS})[0]


def mean_graph(path, axes, **attributes):
    return write_graph(
        path, [helper.make_node("ReduceMean", ["pixels", "axes"], ["logits"], **attributes)], {"axes": axes}
    )


def test_folding_widens_half_weights_and_keeps_the_answers(single, tmp_path):
    fold_constants(single, tmp_path / "folded.onnx")
    model = onnx.load(tmp_path / "folded.onnx")
    assert "Cast" in kinds(single)
    assert "Cast" not in kinds(tmp_path / "folded.onnx")
    assert TensorProto.FLOAT16 not in {initializer.data_type for initializer in model.graph.initializer}
    restore_metadata(tmp_path / "folded.onnx", like=single)
    pixels = np.random.default_rng(2).normal(size=(4, 3, 32, 32)).astype(np.float32)
    for one, other in zip(
        OnnxSession(single).run(pixels), OnnxSession(tmp_path / "folded.onnx").run(pixels), strict=True
    ):
        assert np.abs(one - other).max() < 1e-4


def test_a_file_that_cannot_be_folded_is_an_error_and_nothing_is_logged(single, tmp_path, monkeypatch, caplog):
    def give_up(source, target, **options):
        shutil.copyfile(source, target)

    monkeypatch.setattr("onnxruntime.quantization.shape_inference.quant_pre_process", give_up)
    with pytest.raises(BotanifyError, match=r"could not fold the constants of model\.fp32\.onnx; install"):
        fold_constants(single, tmp_path / "folded.onnx")
    assert not caplog.records


@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-2, -1]])
def test_a_mean_over_height_and_width_becomes_a_pool_with_the_same_result(tmp_path, axes):
    path = mean_graph(tmp_path / "mean.onnx", np.array(axes), keepdims=1)
    before = run(path)
    assert pool_means(path) == 1
    assert kinds(path) == ["GlobalAveragePool"]
    assert not onnx.load(path).graph.initializer
    assert run(path).shape == before.shape == (3, 2, 1, 1)
    assert np.abs(run(path) - before).max() < 1e-6


@pytest.mark.parametrize(
    ("axes", "attributes"),
    [([2, 3], {"keepdims": 0}), ([1, 2], {"keepdims": 1}), ([2], {}), ([1, 2, 3], {}), ([0, 3], {})],
)
def test_any_other_mean_stays(tmp_path, axes, attributes):
    path = mean_graph(tmp_path / "mean.onnx", np.array(axes), **attributes)
    before = run(path)
    assert pool_means(path) == 0
    assert kinds(path) == ["ReduceMean"]
    assert np.array_equal(run(path), before)


def test_every_mean_of_a_network_is_pooled(single, prepared):
    assert "ReduceMean" in kinds(single)
    assert "ReduceMean" not in kinds(prepared)
    assert kinds(prepared).count("GlobalAveragePool") == kinds(single).count("ReduceMean")


def test_a_rewritten_file_keeps_its_metadata_and_loses_unused_domains(tmp_path):
    path = mean_graph(tmp_path / "mean.onnx", np.array([2, 3]))
    like = shutil.copyfile(path, tmp_path / "like.onnx")
    model = onnx.load(path)
    helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    restore_metadata(path, like=like)
    assert metadata(path) == metadata(like) == {"label_hash": "abc", "output_keys": "[]"}
    assert [(opset.domain, opset.version) for opset in onnx.load(path).opset_import] == [("", 20)]


def test_a_raised_opset_is_refused(tmp_path):
    path = write_graph(tmp_path / "new.onnx", [helper.make_node("Relu", ["pixels"], ["logits"])], {}, opset=21)
    with pytest.raises(BotanifyError, match="opset 21 instead of 20"):
        restore_metadata(path, like=path)
