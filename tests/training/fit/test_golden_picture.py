"""The golden picture is reproducible, and the logits of each file are recorded with it."""

import io

import numpy as np
import pytest
from PIL import Image

from models.bundle import check_golden
from models.errors import BundleError
from models.preprocess import InputSpec, picture_to_input
from models.session import OnnxSession
from tests.models.tiny import SIDE_PX, write_network
from training.fit.networks import draw_golden, record_golden
from training.fit.onnx_file import write_fp16


@pytest.fixture(scope="module")
def files(single, tmp_path_factory):
    half = tmp_path_factory.mktemp("golden") / "half.onnx"
    write_fp16(single, half)
    return {"fp32": (single, 1.0), "fp16": (half, 1.0)}


@pytest.fixture(scope="module")
def golden(files, bundle):
    return record_golden(files, bundle.record.input)


def test_the_picture_is_a_small_png_with_structure():
    picture = draw_golden(3)
    assert picture == draw_golden(3) != draw_golden(4)
    assert 5_000 < len(picture) < 16_000
    with Image.open(io.BytesIO(picture)) as opened:
        assert opened.format == "PNG"
        assert np.asarray(opened).std(axis=(0, 1)).min() > 15


def test_the_logits_of_every_file_are_recorded_with_the_preprocessing_of_the_service(golden, files, bundle):
    pixels, _ = picture_to_input(golden.picture, bundle.record.input)
    assert set(golden.logits) == {"fp32", "fp16"}
    for precision, (path, _) in files.items():
        logits = OnnxSession(path).run(pixels[None]).logits[0]
        assert golden.logits[precision] == tuple(map(float, logits))
        check_golden(golden, precision, logits, temperature=1.0)


def test_the_answer_to_another_picture_is_refused(tmp_path):
    # With fixed weights, since a network trained for a few steps may give the same answer to every picture.
    network = write_network(tmp_path / "colors.onnx")
    spec = InputSpec(height=SIDE_PX, width=SIDE_PX, train_px=SIDE_PX)
    golden = record_golden({"fp32": (network, 1.0)}, spec)
    black = np.full((1, 3, SIDE_PX, SIDE_PX), -2, dtype=np.float32)
    with pytest.raises(BundleError, match="does not give the recorded answer to the golden picture"):
        check_golden(golden, "fp32", OnnxSession(network).run(black).logits[0], temperature=0.2)


def test_the_most_stable_picture_is_chosen(files, bundle, monkeypatch):
    moved = np.full((16, 3), [1.0, 0.0, 0.0], dtype=np.float32)
    moved[11] = 0
    found = iter([np.zeros_like(moved), moved] * len(files))
    monkeypatch.setattr("training.fit.networks._logits", lambda path, pixels: next(found))
    assert record_golden(files, bundle.record.input).picture == draw_golden(11)
