"""Calibrated ranges and 8-bit files."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.calibrate import load_tensors_data

from models.bundle import load_bundle
from models.preprocess import picture_to_input
from models.session import OnnxSession
from tests.training.bundling.precisions.graphs import kinds
from training.bundling.precisions.golden_picture import draw_golden
from training.bundling.precisions.graph import fold_constants, pool_means
from training.bundling.precisions.int8 import write_int8
from training.bundling.precisions.ranges import write_ranges


@pytest.fixture(scope="module")
def quantized(single, learned, tmp_path_factory):
    path = tmp_path_factory.mktemp("int8") / "int8.onnx"
    write_int8(single, path, learned.pixels())
    return path


def found_ranges(path):
    return {name: tuple(map(float, data.range_value)) for name, data in load_tensors_data(path).items()}


def test_ranges_of_all_pictures_hold_every_value(extremes, ranges, single, learned):
    found = found_ranges(ranges)
    pixels = np.concatenate(list(learned.pixels()))
    assert found["pixels"] == pytest.approx((pixels.min(), pixels.max()))
    features = OnnxSession(single).run(pixels).features
    assert found["features"] == pytest.approx((features.min(), features.max()), rel=1e-3)
    assert extremes.lowest_NT.shape == extremes.highest_NT.shape == (30, len(extremes.tensors))
    assert (extremes.lowest_NT <= extremes.highest_NT).all()


def test_an_outlier_changes_only_the_ranges_of_all_pictures(extremes, tmp_path):
    astray = replace(extremes, highest_NT=extremes.highest_NT.copy())
    astray.highest_NT[4] = 1e4
    write_ranges(astray, 1.0, tmp_path / "all.json")
    write_ranges(astray, 0.9, tmp_path / "most.json")
    assert found_ranges(tmp_path / "all.json")["logits"][1] == 1e4
    assert found_ranges(tmp_path / "most.json")["logits"][1] < 100


def test_weights_and_activations_are_stored_in_8_bits(quantized):
    graph = onnx.load(quantized).graph
    kinds_of = {initializer.name: initializer.data_type for initializer in graph.initializer}
    large = {kinds_of[initializer.name] for initializer in graph.initializer if np.prod(initializer.dims) >= 1000}
    assert large == {TensorProto.INT8}
    points = [node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"]
    assert points
    assert {kinds_of[name] for name in points} == {TensorProto.UINT8}


def test_weights_use_7_bits(quantized):
    stored = [numpy_helper.to_array(each) for each in onnx.load(quantized).graph.initializer]
    assert max(np.abs(array.astype(int)).max() for array in stored if array.dtype == np.int8) == 64


def test_every_output_channel_has_a_scale_of_its_own(quantized):
    graph = onnx.load(quantized).graph
    arrays = {initializer.name: numpy_helper.to_array(initializer) for initializer in graph.initializer}
    weights = [
        node
        for node in graph.node
        if node.op_type == "DequantizeLinear" and arrays.get(node.input[0], np.empty(0)).ndim == 4
    ]
    assert weights
    for node in weights:
        assert arrays[node.input[1]].shape == (arrays[node.input[0]].shape[0],)


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_and_features_are_close_to_fp32_for_any_batch(quantized, single, learned, batch):
    pixels = np.concatenate([next(learned.pixels())] * batch)
    for coarse, whole in zip(OnnxSession(quantized).run(pixels), OnnxSession(single).run(pixels), strict=True):
        assert coarse.shape == whole.shape
        assert coarse.dtype == np.float32
        assert np.abs(coarse - whole).max() < 0.3 * np.abs(whole).max()


def test_the_names_are_those_of_fp32(quantized, single):
    assert OnnxSession(quantized).output_keys == OnnxSession(single).output_keys


def test_the_likeliest_output_is_nearly_always_that_of_fp32(quantized, single, learned):
    whole, coarse = (learned.outputs(path).logits[:] for path in (single, quantized))
    assert (whole.argmax(axis=1) == coarse.argmax(axis=1)).mean() >= 0.8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_released_network_is_pooled_quantized_and_answers_any_batch(tmp_path):
    released = load_bundle(Path(__file__).parents[4] / "models" / "releases" / "garden_and_wild_plants")
    single = released.folder / released.network("fp32").file
    fold_constants(single, tmp_path / "prepared.onnx")
    assert pool_means(tmp_path / "prepared.onnx") == 17  # 16 squeeze-and-excite blocks and the last pool
    drawn = [picture_to_input(draw_golden(seed), released.record.input)[0][None] for seed in range(4)]
    write_int8(single, tmp_path / "int8.onnx", drawn)
    session = OnnxSession(tmp_path / "int8.onnx")
    assert session.output_keys == released.taxonomy.output_keys
    alone, together = (session.run(np.concatenate(drawn[:count])) for count in (1, 4))
    assert (together.logits.shape, together.features.shape) == ((4, 169), (4, 1280))
    assert np.allclose(alone.logits[0], together.logits[0], atol=1e-3)
    assert (tmp_path / "int8.onnx").stat().st_size < 0.7 * single.stat().st_size  # which is stored in half precision


def test_reductions_over_pictures_run_as_pools(quantized):
    assert "ReduceMean" not in kinds(quantized)
    assert "GlobalAveragePool" in kinds(quantized)
