"""A network file is refused when it is opened unless its inputs, outputs and metadata are those of a bundle."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from models.bundle import load_bundle
from models.errors import BundleError, InputError
from models.openvino_session import OpenVinoSession, _core, bf16_is_faster, has_bf16
from models.session import (
    FEATURES_NAME,
    INPUT_NAME,
    LOGITS_NAME,
    NetworkOutput,
    OnnxSession,
)
from tests.make import ROOT, from_table, ran
from tests.models.tiny import NETWORK, SIDE_PX, TAXONOMY, WEIGHTS, write_network

try:
    HAS_BF16 = has_bf16()
except InputError:
    HAS_BF16 = None
WITH_OPENVINO = pytest.mark.skipif(HAS_BF16 is None, reason="OpenVINO is not installed: the extra serve-openvino")
SESSIONS = [OnnxSession, pytest.param(OpenVinoSession, marks=WITH_OPENVINO)]


def pixels_of(num_pictures, seed=0):
    return np.random.default_rng(seed).normal(size=(num_pictures, 3, SIDE_PX, SIDE_PX)).astype(np.float32)


@pytest.fixture(params=SESSIONS)
def refusal(request):
    """Returns the message with which a file is refused; it names the file and ends in a remedy."""

    def refused(path):
        with pytest.raises(BundleError) as caught:
            request.param(path, num_threads=1)
        message = str(caught.value)
        assert path.name in message
        assert "export" in message.rpartition(": ")[2]
        return message

    return refused


# ---- a valid file


@pytest.mark.parametrize("num_pictures", [1, 2, 7])
@pytest.mark.parametrize("kind", SESSIONS)
def test_batch_of_any_size_gives_logits_and_features(network_file, num_pictures, kind):
    pixels = pixels_of(num_pictures)
    output = kind(network_file, num_threads=1).run(pixels)
    assert isinstance(output, NetworkOutput)
    features = pixels.mean(axis=(2, 3))
    np.testing.assert_allclose(output.features, features, atol=1e-6)
    np.testing.assert_allclose(output.logits, features @ WEIGHTS, atol=1e-5)
    assert output.logits.dtype == output.features.dtype == np.float32


@pytest.mark.parametrize("kind", SESSIONS)
def test_threads_at_once_get_the_numbers_of_one(network_file, kind):
    session = kind(network_file, num_threads=1)
    batches = [pixels_of(1 + seed % 3, seed) for seed in range(60)]
    expected = [session.run(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(session.run, batches), expected, strict=True):
            np.testing.assert_array_equal(got.logits, wanted.logits)
            np.testing.assert_array_equal(got.features, wanted.features)


def test_importing_the_module_loads_no_runtime():
    program = (
        "import sys, models.session, models.bundle\n"
        "print(sorted({'onnxruntime', 'openvino', 'torch', 'onnx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    ended = ran(*command, check=True, timeout=300)
    assert ended.stdout.strip() == "[]"


# ---- OpenVINO


@WITH_OPENVINO
def test_openvino_gives_the_numbers_of_onnx_runtime_for_the_demonstration_bundle():
    bundle = load_bundle(ROOT / "models" / "releases" / "garden_and_wild_plants")
    side = bundle.record.input.height
    pixels = np.random.default_rng(0).normal(size=(2, 3, side, side)).astype(np.float32)
    expected = bundle.open_session("fp32", num_threads=1).run(pixels)
    found = bundle.open_session("fp32", openvino=True, num_threads=1, num_runs=2).run(pixels)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


class SlowRequest:
    """A request of a network that computes slowly into one array, and copies that at the end unless it is shared."""

    def infer(self, inputs, share_inputs=False, share_outputs=False):
        self.features = inputs[INPUT_NAME].mean(axis=(2, 3))
        time.sleep(0.001)
        found = {LOGITS_NAME: self.features @ WEIGHTS, FEATURES_NAME: self.features}
        return found if share_outputs else {name: array.copy() for name, array in found.items()}


@WITH_OPENVINO
@pytest.mark.parametrize("is_slow", [False, True])
def test_threads_that_share_the_one_run_of_openvino_get_their_own_results(network_file, is_slow):
    session = OpenVinoSession(network_file, num_threads=1, num_runs=1)
    if is_slow:
        session._network = SimpleNamespace(create_infer_request=SlowRequest)

    def runs(thread):
        for number in range(200):
            value = np.float32(thread + number / 200)
            yield session.run(np.full((1, 3, SIDE_PX, SIDE_PX), value)).features == pytest.approx(value, rel=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda thread: all(runs(thread)), range(4)))


@WITH_OPENVINO
@from_table
def test_openvino_has_the_threads_of_all_runs(network_file, num_threads, num_runs):
    session = OpenVinoSession(network_file, num_threads=num_threads, num_runs=num_runs)
    assert session._network.get_property("INFERENCE_NUM_THREADS") == min(2, os.cpu_count())
    assert session._network.get_property("NUM_STREAMS") == num_runs


@pytest.mark.skipif(not HAS_BF16, reason="needs OpenVINO and a processor with bfloat16")
def test_bf16_rounds_the_numbers_of_fp32(network_file):
    exact = OpenVinoSession(network_file, num_threads=1).run(pixels_of(2)).logits
    rounded = OpenVinoSession(network_file, bf16=True, num_threads=1).run(pixels_of(2)).logits
    assert 0 < np.abs(rounded - exact).max() < 0.02


def test_bf16_that_the_processor_lacks_is_refused_because_openvino_would_compute_something_else(
    network_file, monkeypatch
):
    monkeypatch.setattr("models.openvino_session.has_bf16", lambda: False)
    with pytest.raises(InputError, match=r"does not compute in bfloat16.*leave out the precision bf16"):
        OpenVinoSession(network_file, bf16=True)


@WITH_OPENVINO
def test_openvino_writes_nothing_and_loads_no_telemetry(network_file, tmp_path):
    program = (
        "import sys; from pathlib import Path; from models.openvino_session import OpenVinoSession\n"
        "OpenVinoSession(Path(sys.argv[1]))\n"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry.')], list(Path.home().iterdir()))"
    )
    command = [sys.executable, "-W", "error", "-c", program, network_file]
    ended = ran(*command, env=os.environ | {"HOME": str(tmp_path)}, check=True, timeout=300)
    assert (ended.stdout, ended.stderr) == ("[] []\n", "")


@WITH_OPENVINO
def test_a_signal_is_handled_after_networks_of_openvino_were_closed(network_file):
    """As after a reload: where each network had a Core of its own, the signal ended the process."""
    program = (
        "import os, signal, sys; from pathlib import Path; from models.openvino_session import OpenVinoSession\n"
        "first, second = [OpenVinoSession(Path(sys.argv[1])) for _ in range(2)]\n"
        "del first, second; signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    assert ran(sys.executable, "-c", program, network_file, check=True, timeout=300).stdout == "handled\n"


def test_without_openvino_the_error_names_the_extra(network_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr("models.openvino_session._core", _core.__wrapped__)
    with pytest.raises(InputError, match=r"OpenVINO cannot be imported.*install the extra serve-openvino"):
        OpenVinoSession(network_file)


# ---- files that are refused


@pytest.mark.parametrize("content", [b"", b"not a network", b"\x08\x0a" * 500])
def test_garbage_is_refused(tmp_path, content, refusal):
    path = tmp_path / NETWORK
    path.write_bytes(content)
    assert "does not load" in refusal(path)


@from_table
def test_other_inputs_or_outputs_are_refused(tmp_path, change, refusal):
    message = refusal(write_network(tmp_path / NETWORK, **change))
    assert "expected pixels -> logits, features" in message
    (name,) = [name[0] if isinstance(name, list) else name for name in change.values()]
    assert name in message


@from_table
def test_network_with_another_input_shape_is_refused(tmp_path, change, expected, refusal):
    message = refusal(write_network(tmp_path / NETWORK, **change))
    assert "does not take pictures in the shape of a bundle's network" in message
    assert expected in message


KEYS = TAXONOMY.output_keys


@from_table
def test_file_without_valid_output_names_is_refused(tmp_path, metadata, refusal):
    message = refusal(write_network(tmp_path / NETWORK, metadata=metadata))
    assert "lacks the names of its outputs" in message


def test_more_or_fewer_names_than_outputs_are_refused(tmp_path, refusal):
    message = refusal(write_network(tmp_path / NETWORK, keys=KEYS[:3]))
    assert "got 4 outputs; expected 3" in message


def test_logits_without_an_output_axis_are_refused(tmp_path, refusal):
    assert "got no outputs" in refusal(write_network(tmp_path / NETWORK, flat_logits=True))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"AuthenticAMD", "avx512_bf16"}, True),
        ({"GenuineIntel", "avx512_bf16"}, False),
        ({"GenuineIntel", "avx512_bf16", "amx_bf16"}, True),
        ({"AuthenticAMD", "avx2"}, False),
        (set(), False),
    ],
)
def test_bf16_is_chosen_on_processors_that_are_faster_in_it(flags, expected, monkeypatch):
    monkeypatch.setattr("models.openvino_session.processor_flags", lambda: frozenset(flags))
    assert bf16_is_faster() is expected
