"""Half precision: the rewritten graphs, and a network that computes on a CPU what a GPU computes."""

import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.errors import BotanifyError
from models.session import OnnxSession
from training.fit.onnx_file import OPSET, fold_constants, restore_metadata, write_fp16, write_rounded


def write_graph(path, nodes, constants, opset=20):
    """A network from `pixels` to `logits`; constants are name -> array."""
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 2, 4, 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", None, None, None])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(model, {"label_hash": "abc", "output_keys": "[]"})
    onnx.save(model, path)
    return path


def kinds(path):
    """Operators of a file, in order."""
    return [node.op_type for node in onnx.load(path).graph.node]


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


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


def test_a_rewritten_file_keeps_its_metadata_and_loses_unused_domains(tmp_path):
    path = write_graph(tmp_path / "relu.onnx", [helper.make_node("Relu", ["pixels"], ["logits"])], {})
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


@pytest.fixture(scope="module", params=[write_fp16, write_rounded])
def written(request, single, tmp_path_factory):
    path = tmp_path_factory.mktemp("half") / "model.onnx"
    request.param(single, path)
    return path


def test_inputs_and_outputs_are_float32_with_the_same_names(written, single):
    graph = onnx.load(written).graph
    assert [(node.name, node.type.tensor_type.elem_type) for node in [*graph.input, *graph.output]] == [
        ("pixels", TensorProto.FLOAT),
        ("logits", TensorProto.FLOAT),
        ("features", TensorProto.FLOAT),
    ]
    assert metadata(written) == metadata(single)
    assert [(opset.domain, opset.version) for opset in onnx.load(written).opset_import] == [("", OPSET)]
    assert OnnxSession(written).output_keys == OnnxSession(single).output_keys


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_are_close_to_fp32_for_any_batch(written, single, learned, batch):
    pixels = np.concatenate([next(learned.pixels([]))[:1]] * batch)
    for half, whole in zip(OnnxSession(written).run(pixels), OnnxSession(single).run(pixels), strict=True):
        assert half.shape == whole.shape
        assert half.dtype == np.float32
        assert np.abs(half - whole).max() < 0.02 * np.abs(whole).max()


def test_weights_are_half_and_operators_compute_in_half(single, tmp_path):
    write_fp16(single, tmp_path / "half.onnx")
    graph = onnx.load(tmp_path / "half.onnx").graph
    weights = [initializer for initializer in graph.initializer if np.prod(initializer.dims) >= 64]
    assert weights
    assert {initializer.data_type for initializer in weights} == {TensorProto.FLOAT16}
    casts = [node for node in graph.node if node.op_type == "Cast"]
    assert len(casts) == 3  # of the input and both outputs; no other tensor returns to float32


def test_the_rounded_network_rounds_every_tensor(single, learned, tmp_path):
    write_rounded(single, tmp_path / "rounded.onnx")
    pixels = next(learned.pixels([]))[:1]
    for answer in OnnxSession(tmp_path / "rounded.onnx").run(pixels):
        assert np.array_equal(answer, answer.astype(np.float16).astype(np.float32))
    rounded, whole = (OnnxSession(path).run(pixels).logits for path in (tmp_path / "rounded.onnx", single))
    assert not np.array_equal(rounded, whole)


def test_the_rounded_network_overflows_like_a_gpu_where_the_fp16_file_on_a_cpu_does_not(tmp_path):
    steps = [("Mul", "pixels", "a"), ("Mul", "a", "b"), ("Div", "b", "c"), ("Div", "c", "logits")]
    nodes = [helper.make_node(kind, [source, "k"], [target], name=target) for kind, source, target in steps]
    single = write_graph(tmp_path / "single.onnx", nodes, {"k": np.float32(300)})
    pixels = np.ones((1, 2, 4, 4), dtype=np.float32)  # 300 * 300 is more than 65,504
    answers = {}
    for write in (write_fp16, write_rounded):
        write(single, tmp_path / "written.onnx")
        (answers[write],) = onnxruntime.InferenceSession(tmp_path / "written.onnx").run(["logits"], {"pixels": pixels})
    assert np.allclose(answers[write_fp16], 1)
    assert not np.isfinite(answers[write_rounded]).any()
