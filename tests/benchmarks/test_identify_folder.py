"""The comparison of ways to identify a folder."""

import pytest

from benchmarks.identify_folder import FolderSpeed, FolderSpeedResult, markdown, measure
from benchmarks.serving.flags import Network
from models.errors import DataError
from training.machine import this_machine


def result(*ours):
    rounds = [
        {"identify_folder": rate, "decode and network alone": 10.0, "curl, one at a time": 5.0, "torch and timm": 2.0}
        for rate in ours
    ]
    return FolderSpeedResult(
        machine=this_machine(),
        measured_on="2026-11-23",
        network=Network("tiny", "efficientnet_b4", 380, 17, "0"),
        precision="fp32",
        number=30,
        rounds=rounds,
    )


def test_ratios_are_taken_within_a_round():
    assert "| torch and timm | 2.0 [2.0 to 2.0] | 4.80 [4.50 to 5.00]" in markdown(result(9.0, 9.6, 10.0))


def test_a_folder_without_photographs_is_one_error(tmp_path):
    with pytest.raises(DataError, match="no JPEG files"):
        measure(FolderSpeed(photographs=tmp_path))
