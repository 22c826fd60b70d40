"""A network file is refused when it is opened unless its inputs, outputs and metadata are those of a bundle."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from models.errors import BundleError
from models.session import LABEL_HASH_FIELD, OUTPUT_KEYS_FIELD, NetworkOutput, OnnxSession
from models.taxonomy import label_hash
from tests.models.tiny import NETWORK, SIDE_PX, TAXONOMY, WEIGHTS, metadata_of, write_network

ROOT = Path(__file__).resolve().parents[2]


def pixels_of(num_pictures, seed=0):
    return np.random.default_rng(seed).normal(size=(num_pictures, 3, SIDE_PX, SIDE_PX)).astype(np.float32)


def refusal(path):
    """The message with which a file is refused; it names the file and ends in a remedy."""
    with pytest.raises(BundleError) as caught:
        OnnxSession(path, num_threads=1)
    message = str(caught.value)
    assert path.name in message
    assert "export" in message.rpartition(": ")[2]
    return message


# ---- a valid file


@pytest.mark.parametrize("num_pictures", [1, 2, 7])
def test_batch_of_any_size_gives_logits_and_features(network_file, num_pictures):
    pixels = pixels_of(num_pictures)
    output = OnnxSession(network_file, num_threads=1).run(pixels)
    assert isinstance(output, NetworkOutput)
    features = pixels.mean(axis=(2, 3))
    np.testing.assert_allclose(output.features, features, atol=1e-6)
    np.testing.assert_allclose(output.logits, features @ WEIGHTS, atol=1e-5)
    assert output.logits.dtype == output.features.dtype == np.float32


def test_threads_at_once_get_the_numbers_of_one(network_file):
    session = OnnxSession(network_file, num_threads=1)
    batches = [pixels_of(1 + seed % 3, seed) for seed in range(60)]
    expected = [session.run(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(session.run, batches), expected, strict=True):
            np.testing.assert_array_equal(got.logits, wanted.logits)
            np.testing.assert_array_equal(got.features, wanted.features)


def test_importing_the_module_loads_no_runtime():
    program = (
        "import sys, models.session, models.bundle; print(sorted({'onnxruntime', 'torch', 'onnx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert ended.stdout.strip() == "[]"


# ---- files that are refused


@pytest.mark.parametrize("content", [b"", b"not a network", b"\x08\x0a" * 500])
def test_garbage_is_refused(tmp_path, content):
    path = tmp_path / NETWORK
    path.write_bytes(content)
    assert "does not load" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        {"input_name": "images"},
        {"logits_name": "output"},
        {"features_name": "pooled"},
        {"more_inputs": ("threshold",)},
    ],
    ids=str,
)
def test_other_inputs_or_outputs_are_refused(tmp_path, change):
    message = refusal(write_network(tmp_path / NETWORK, **change))
    assert "expected pixels -> logits, features" in message
    (name,) = [name[0] if isinstance(name, tuple) else name for name in change.values()]
    assert name in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"input_shape": (1, 3, SIDE_PX, SIDE_PX)}, f"[1, 3, {SIDE_PX}, {SIDE_PX}]"),
        ({"input_shape": ("batch", SIDE_PX, SIDE_PX, 3), "side_axes": (1, 2)}, f"{SIDE_PX}, 3]"),
        ({"input_type": TensorProto.UINT8}, "tensor(uint8)"),
    ],
    ids=["fixed batch", "channels last", "bytes"],
)
def test_network_with_another_input_shape_is_refused(tmp_path, change, expected):
    message = refusal(write_network(tmp_path / NETWORK, **change))
    assert "does not take pictures in the shape of a bundle's network" in message
    assert expected in message


KEYS = TAXONOMY.output_keys


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {OUTPUT_KEYS_FIELD: json.dumps(KEYS)},
        {LABEL_HASH_FIELD: label_hash(KEYS)},
        metadata_of(()),
        metadata_of(KEYS) | {LABEL_HASH_FIELD: label_hash(KEYS[::-1])},
        metadata_of(KEYS) | {OUTPUT_KEYS_FIELD: "no JSON"},
        metadata_of(KEYS) | {OUTPUT_KEYS_FIELD: "7"},
        metadata_of(KEYS) | {OUTPUT_KEYS_FIELD: '{"a:rosa-canina": 0}'},
        {OUTPUT_KEYS_FIELD: "[1, 2, 3, 4]", LABEL_HASH_FIELD: label_hash([1, 2, 3, 4])},
    ],
    ids=["none", "no hash", "no keys", "no key", "other hash", "no JSON", "number", "object", "numbers as keys"],
)
def test_file_without_valid_output_names_is_refused(tmp_path, metadata):
    message = refusal(write_network(tmp_path / NETWORK, metadata=metadata))
    assert "lacks the names of its outputs" in message


def test_more_or_fewer_names_than_outputs_are_refused(tmp_path):
    message = refusal(write_network(tmp_path / NETWORK, keys=KEYS[:3]))
    assert "got 4 outputs; expected 3" in message


def test_logits_without_an_output_axis_are_refused(tmp_path):
    assert "got no outputs" in refusal(write_network(tmp_path / NETWORK, flat_logits=True))
