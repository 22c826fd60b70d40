"""The comparison of ways to identify a folder."""

import pytest

from benchmarks.identify_folder import FolderSpeed, FolderSpeedResult, markdown, measure, targets
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


@pytest.mark.parametrize(("rates", "line"), [((9.0, 9.6, 10.0), "reached"), ((9.0, 9.4, 10.0), "MISSED")])
def test_goal_is_a_share_of_decode_and_network_alone(rates, line):
    page = markdown(result(*rates))
    assert len(targets(result(*rates))) == 1
    assert page.splitlines()[-1].endswith(line)
    assert f"| torch and timm | 2.0 [2.0 to 2.0] | {sorted(rates)[1] / 2:.2f}" in page


def test_a_folder_without_photographs_is_one_error(tmp_path):
    with pytest.raises(DataError, match="no JPEG files"):
        measure(FolderSpeed(photographs=tmp_path))
