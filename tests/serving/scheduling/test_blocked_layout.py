"""Rewriting the channel scalings of squeeze-and-excite to ONNX Runtime's blocked layout."""

import os
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.bundle import load_bundle
from models.errors import BundleError
from models.session import OnnxSession
from serving.scheduling import blocked_graph, blocked_layout, networks, rewriting
from serving.scheduling.blocked_graph import keep_blocked, one_convolution, read_block_size
from serving.scheduling.blocked_layout import rewritten_network
from serving.scheduling.networks import CpuPolicy
from serving.scheduling.rewriting import block_size
from tests.models.open_files import open_files
from tests.models.tiny import SIDE_PX, TAXONOMY, bundle_record, metadata_of, seal_tiny

CHANNELS, OUTPUTS, POLICY = 32, 4, CpuPolicy(2)
# Output channels of the projection: fewer and more than the feature map has pixels.
FEW, MANY = 32, SIDE_PX**2 + 8
SCALING = "scaled"


def silu(name, output):
    return [
        helper.make_node("Sigmoid", [name], [f"{output}_s"]),
        helper.make_node("Mul", [name, f"{output}_s"], [output]),
    ]


def conv(name, weights, output, **attributes):
    return helper.make_node("Conv", [name, weights], [output], **attributes)


def mean(name, output, *, pool):
    if pool:
        return helper.make_node("GlobalAveragePool", [name], [output])
    return helper.make_node("ReduceMean", [name, "sides"], [output], keepdims=1)


def write_squeezing(
    path, *, pool=False, scaled=True, scales_first=False, channels=CHANNELS, num_scales=None, features=FEW
):
    """A stem, a squeeze-and-excite block as EfficientNet has it, a projection to the features, and a classifier."""
    rng = np.random.default_rng(3)
    shapes = {
        "stem": (channels, 3, 3, 3), "deep": (channels, 1, 3, 3), "squeeze": (8, channels, 1, 1),
        "excite": (num_scales or channels, 8, 1, 1), "project": (features, channels, 1, 1),
        "classify": (features, OUTPUTS),
    }  # fmt: skip
    weights = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    scaling = [
        mean("x", "squeezed", pool=pool), conv("squeezed", "squeeze", "few"), *silu("few", "few_active"),
        conv("few_active", "excite", "scales_raw"), helper.make_node("Sigmoid", ["scales_raw"], ["scales"]),
        helper.make_node("Mul", ["scales", "x"] if scales_first else ["x", "scales"], [SCALING]),
    ]  # fmt: skip
    nodes = [
        conv("pixels", "stem", "stem_raw", pads=[1, 1, 1, 1]), *silu("stem_raw", "stem_active"),
        conv("stem_active", "deep", "deep_raw", pads=[1, 1, 1, 1], group=channels), *silu("deep_raw", "x"),
        *(scaling if scaled else []), conv(SCALING if scaled else "x", "project", "projected"),
        mean("projected", "pooled", pool=pool), helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("MatMul", ["features", "classify"], ["logits"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "squeezing",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, SIDE_PX, SIDE_PX])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", OUTPUTS]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", features]),
        ],
        [*(numpy_helper.from_array(each, name) for name, each in weights.items()),
         numpy_helper.from_array(np.array([2, 3]), "sides")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, metadata_of(TAXONOMY.output_keys))
    onnx.save(onnx.shape_inference.infer_shapes(model), path)  # as exporters do
    return path


def optimized(path, folder):
    """Returns the network file as ONNX Runtime optimizes it on this machine."""
    copy = folder / "optimized.onnx"
    OnnxSession(path, num_threads=1, optimized_copy=copy)
    if "ReorderOutput" not in kinds(copy.read_bytes()):
        pytest.skip("ONNX Runtime has no blocked layout for this processor")
    return copy.read_bytes()


def kinds(file):
    return [node.op_type for node in onnx.load_model_from_string(file).graph.node]


def noise(num_pictures=1):
    return np.random.default_rng(5).standard_normal((num_pictures, 3, SIDE_PX, SIDE_PX), dtype=np.float32)


def require_same_output(path, rewritten_file):
    """Requires the rewritten network to give the original network's output."""
    copy = path.with_name("rewritten.onnx")
    copy.write_bytes(rewritten_file)
    plain, faster = OnnxSession(path), OnnxSession(copy, optimize=False)
    for actual, expected in zip(faster.run(noise()), plain.run(noise()), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def bundle(tmp_path):
    def sealed(**changes):
        network = write_squeezing(tmp_path / "network.onnx", **changes)
        optimized(network, tmp_path)
        seal_tiny(tmp_path / "bundle", network, record=bundle_record())
        return load_bundle(tmp_path / "bundle")

    return sealed


@pytest.fixture
def warnings(monkeypatch):
    logged = []
    monkeypatch.setattr(networks._log, "warning", lambda event, **facts: logged.append((event, facts)), raising=False)
    return logged


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("scales_first", [False, True])
@pytest.mark.parametrize("features", [FEW, MANY])
def test_scalings_stay_in_the_blocked_layout_with_the_same_output(tmp_path, pool, scales_first, features):
    path = write_squeezing(tmp_path / "network.onnx", pool=pool, scales_first=scales_first, features=features)
    before = optimized(path, tmp_path)
    after, num_scalings, num_into_weights = keep_blocked(before, block_size())
    assert (num_scalings, num_into_weights) == (1, int(features == FEW))
    assert "ReorderInput" not in kinds(after)
    assert kinds(after).count("ReorderOutput") < kinds(before).count("ReorderOutput")
    require_same_output(path, after)


def test_scales_multiply_the_next_weights_if_there_are_few(tmp_path):
    before = optimized(write_squeezing(tmp_path / "network.onnx", features=FEW), tmp_path)
    after = keep_blocked(before, block_size()).file
    assert kinds(after).count("Conv") == kinds(before).count("Conv")
    assert kinds(after).count("Mul") == 1


def test_scaling_becomes_a_convolution_if_there_are_many_next_weights(tmp_path):
    before = optimized(write_squeezing(tmp_path / "network.onnx", features=MANY), tmp_path)
    after = keep_blocked(before, block_size()).file
    assert kinds(after).count("Conv") == kinds(before).count("Conv") + 1
    assert "Mul" not in kinds(after)


@pytest.mark.parametrize(("channels", "features"), [(20, FEW), (CHANNELS, 20), (20, 12), (44, 20)])
def test_channels_of_an_incomplete_block_are_scaled(tmp_path, channels, features):
    path = write_squeezing(tmp_path / "network.onnx", channels=channels, features=features)
    after, num_scalings, num_into_weights = keep_blocked(optimized(path, tmp_path), block_size())
    assert (num_scalings, num_into_weights) == (1, 1)
    require_same_output(path, after)


def test_bias_and_residual_of_the_projection_are_kept(tmp_path):
    path = write_squeezing(tmp_path / "network.onnx")
    model = onnx.load(path)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    [index] = [index for index, node in enumerate(nodes) if node.output[0] == "projected"]
    nodes[index].input.append("bias")
    nodes[index].output[0] = "projected_raw"
    nodes.insert(index + 1, helper.make_node("Add", ["projected_raw", "stem_active"], ["projected"]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.linspace(-1, 1, FEW, dtype=np.float32), "bias"))
    onnx.save(model, path)
    before = optimized(path, tmp_path)
    assert "Add" not in kinds(before)  # ONNX Runtime adds within the convolution
    after = keep_blocked(before, block_size())
    assert after.num_into_weights == 1
    require_same_output(path, after.file)


def test_scaling_becomes_a_convolution_if_the_size_of_the_feature_map_is_unknown(tmp_path):
    path = write_squeezing(tmp_path / "network.onnx")
    model = onnx.load_model_from_string(optimized(path, tmp_path))
    del model.graph.value_info[:]
    after, num_scalings, num_into_weights = keep_blocked(model.SerializeToString(), block_size())
    assert (num_scalings, num_into_weights) == (1, 0)
    require_same_output(path, after)


def test_weights_are_not_scaled_if_the_block_size_is_unknown(tmp_path):
    path = write_squeezing(tmp_path / "network.onnx")
    after, num_scalings, num_into_weights = keep_blocked(optimized(path, tmp_path), read_block_size(one_convolution()))
    assert (num_scalings, num_into_weights) == (1, 0)
    require_same_output(path, after)


def test_single_scale_for_all_channels_is_not_rewritten(tmp_path):
    before = optimized(write_squeezing(tmp_path / "network.onnx", num_scales=1), tmp_path)
    assert keep_blocked(before, block_size()) == (before, 0, 0)


def test_network_without_scalings_is_not_rewritten(tmp_path):
    before = optimized(write_squeezing(tmp_path / "network.onnx", scaled=False), tmp_path)
    assert keep_blocked(before, block_size()) == (before, 0, 0)


def test_scaling_that_is_an_output_keeps_its_plain_form(tmp_path):
    path = write_squeezing(tmp_path / "network.onnx")
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_value_info(SCALING, TensorProto.FLOAT, None))
    onnx.save(model, path)
    after, num_scalings, _ = keep_blocked(optimized(path, tmp_path), block_size())
    assert num_scalings == 1
    require_same_output(path, after)
    plain, faster = OnnxSession(path), OnnxSession(tmp_path / "rewritten.onnx", optimize=False)
    [expected], [actual] = (each._session.run([SCALING], {"pixels": noise()}) for each in (plain, faster))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_all_cpu_modes_run_the_rewritten_network(bundle, warnings):
    sealed = bundle()
    opened = networks.open_networks(sealed, "fp32", POLICY)
    original = sealed.open_session("fp32")
    assert set(opened) == {"throughput", "latency"}
    for session in opened.values():
        np.testing.assert_allclose(session.run(noise()).logits, original.run(noise()).logits, rtol=1e-4, atol=1e-5)
        with pytest.raises(Exception, match="Attempting to broadcast"):  # it takes one picture
            session.run(noise(2))
    assert not warnings


def test_rewritten_network_with_different_output_is_not_used(bundle, warnings, monkeypatch):
    sealed = bundle()
    monkeypatch.setattr(blocked_layout, "_TOLERANCE", -1.0)
    opened = networks.open_networks(sealed, "fp32", POLICY)
    assert opened["throughput"].run(noise(2)).logits.shape == (2, OUTPUTS)
    assert warnings == [("blocked_layout_left_out", {"reason": "its output differs from the original network's"})]


def test_weights_scaled_in_the_wrong_order_are_detected(bundle, warnings, monkeypatch):
    sealed = bundle()
    monkeypatch.setattr(rewriting, "rewrite", rewriting.rewrite_here)
    monkeypatch.setattr(rewriting, "block_size", lambda: block_size() // 2)
    opened = networks.open_networks(sealed, "fp32", POLICY)
    assert opened["throughput"].run(noise(2)).logits.shape == (2, OUTPUTS)
    assert warnings == [("blocked_layout_left_out", {"reason": "its output differs from the original network's"})]


def test_rewritten_network_that_does_not_open_is_not_used(bundle, warnings, monkeypatch):
    sealed = bundle()
    monkeypatch.setattr(rewriting, "rewrite", rewriting.rewrite_here)
    monkeypatch.setattr(blocked_graph, "_BLOCKED", "com.example.unknown")
    opened = networks.open_networks(sealed, "fp32", POLICY)
    assert opened["throughput"].run(noise(2)).logits.shape == (2, OUTPUTS)
    [(event, facts)] = warnings
    assert event == "blocked_layout_left_out"
    assert "com.example.unknown" in facts["reason"]


def test_network_is_opened_as_it_is_without_rewriting(bundle, warnings, monkeypatch):
    sealed = bundle()
    monkeypatch.setattr(networks, "_open_rewritten", None)
    opened = networks.open_networks(sealed, "fp32", POLICY, rewrite=False)
    assert opened["throughput"].run(noise(2)).logits.shape == (2, OUTPUTS)
    assert not warnings


def test_process_that_fails_leaves_the_original_network(bundle, warnings, monkeypatch):
    sealed = bundle()
    monkeypatch.setattr(sys, "executable", "false")
    opened = networks.open_networks(sealed, "fp32", POLICY)
    assert opened["throughput"].run(noise(2)).logits.shape == (2, OUTPUTS)
    assert warnings == [("blocked_layout_left_out", {"reason": "its rewriting ended with code 1"})]


def test_damaged_network_is_an_error(bundle):
    sealed = bundle()
    sealed.network_path("fp32").write_bytes(b"no network")
    with pytest.raises(BundleError, match=r"does not load"):
        networks.open_networks(sealed, "fp32", POLICY)


def test_nothing_is_rewritten_without_in_memory_files(bundle, monkeypatch):
    sealed = bundle()
    monkeypatch.delattr(os, "memfd_create")
    with rewritten_network(sealed.network_path("fp32"), sealed.record.input) as rewritten:
        assert rewritten is None


def test_in_memory_file_is_closed_with_the_context(bundle):
    sealed = bundle()
    with rewritten_network(sealed.network_path("fp32"), sealed.record.input) as rewritten:
        assert rewritten.path.exists()
        assert len(open_files("memfd:botanify-network")) == 1
    assert open_files("memfd:botanify-network") == []
