"""The golden picture detects a network that computes wrong results, and accepts differences in rounding."""

import json

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from models.bundle import GOLDEN_FILE, GOLDEN_PART, Golden, check_golden
from models.errors import BundleError
from tests.models.tiny import bundle_record, seal_tiny

GOLDEN = Golden(picture=b"\x89PNG\0\xff", logits={"fp32": (2.0, 1.0, -1.0, 0.5)})


def answer(golden, logits, temperature=1.0, precision="fp32"):
    check_golden(golden, precision, np.array(logits, dtype=np.float32), temperature)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "golden"
    path.write_bytes(msgspec.json.encode(GOLDEN))
    return path


def seal(folder, network_file, file):
    return seal_tiny(
        folder, network_file, record=bundle_record(parts={GOLDEN_PART: GOLDEN_FILE}), more_files={GOLDEN_FILE: file}
    )


def test_a_bundle_returns_its_golden_picture(tmp_path, network_file, file):
    assert seal(tmp_path / "tiny", network_file, file).golden() == GOLDEN


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"picture": "?", "logits": {}}', b'{"picture": "", "logits": {"fp8": []}}']
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, network_file, content):
    (tmp_path / "golden").write_bytes(content)
    bundle = seal(tmp_path / "tiny", network_file, tmp_path / "golden")
    with pytest.raises(BundleError, match=rf"{GOLDEN_FILE} cannot be read"):
        bundle.golden()


def test_the_picture_is_base64_in_the_file(file):
    assert json.loads(file.read_text())["picture"] == "iVBORwD/"


def test_rounded_logits_pass():
    answer(GOLDEN, np.add(GOLDEN.logits["fp32"], [0.01, -0.01, 0.02, 0.0]))


@pytest.mark.parametrize(
    "logits",
    [
        [1.0, 2.0, -1.0, 0.5],
        [0.0, 0.0, 0.0, 0.0],
        [2.0, 1.0, np.nan, 0.5],
        [np.inf, 1.0, -1.0, 0.5],
        [2.0, 1.0, -1.0],
        [[2.0, 1.0, -1.0, 0.5]],
    ],
    ids=["exchanged", "zeros", "nan", "infinite", "too few", "a batch"],
)
def test_another_answer_is_refused(logits):
    with pytest.raises(BundleError, match=r"fp32 network does not give the recorded answer .*at most 0\.02.*fetch"):
        answer(GOLDEN, logits)


def test_the_temperature_decides_how_much_a_difference_of_logits_weighs():
    nearly = np.add(GOLDEN.logits["fp32"], [0.1, 0.0, 0.0, 0.0])
    answer(GOLDEN, nearly, temperature=5.0)
    with pytest.raises(BundleError, match=r"difference in probability of 0\.02"):
        answer(GOLDEN, nearly, temperature=1.0)


def test_a_probability_that_falls_counts_even_if_no_other_one_rises_as_much():
    with pytest.raises(BundleError, match=r"difference in probability of 0\.03"):
        answer(Golden(b"", {"fp32": (4.0, 0.0, 0.0, 0.0)}), [3.4, 0.0, 0.0, 0.0])


def test_each_precision_is_compared_with_its_own_logits():
    golden = replace(GOLDEN, logits={**GOLDEN.logits, "fp16": (0.0, 3.0, 0.0, 0.0)})
    answer(golden, [0.0, 3.0, 0.0, 0.0], precision="fp16")
    with pytest.raises(BundleError, match="fp16 network does not give"):
        answer(golden, GOLDEN.logits["fp32"], precision="fp16")


def test_a_precision_without_recorded_logits_is_refused():
    with pytest.raises(BundleError, match=r"no recorded logits of that precision \(got fp16; expected fp32\): export"):
        answer(GOLDEN, GOLDEN.logits["fp32"], precision="fp16")
