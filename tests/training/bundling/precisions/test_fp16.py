"""Half precision: the interface of the file, and a network that computes on a CPU what a GPU computes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from models.session import OnnxSession
from tests.training.bundling.precisions.graphs import metadata, write_graph
from training.bundling.onnx_file import OPSET
from training.bundling.precisions.fp16 import write_fp16, write_rounded


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
    pixels = np.concatenate([next(learned.pixels())] * batch)
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
    pixels = next(learned.pixels())
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
