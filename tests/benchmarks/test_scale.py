import json
import subprocess
import sys
from itertools import pairwise

import pytest

from benchmarks.scale import Scale, generate, measure
from tests.make import ROOT


def test_a_small_run_measures_every_step(tmp_path):
    result = measure(Scale(pictures=6000, out=tmp_path / "scale.json"))
    assert 0 < result.num_outputs <= 5337
    assert 0 < result.num_kept < 6000
    assert len(result.seconds) == 5
    written = json.loads((tmp_path / "scale.json").read_text())
    assert written["num_kept"] == result.num_kept
    assert written["machine"]["num_cores"] >= 1


def test_what_is_generated_holds_copies_and_near_copies(tmp_path):
    _, pictures = generate(20_000, tmp_path)
    assert len({picture.info.sha256 for picture in pictures}) < len(pictures)
    distances = [
        (one.info.perceptual_hash ^ other.info.perceptual_hash).bit_count() for one, other in pairwise(pictures)
    ]
    assert 2 in distances
    assert {picture.record.split for picture in pictures} == {"train", "test", None}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_million_and_a_half_pictures_take_under_three_minutes_and_four_gigabytes(tmp_path):
    out = tmp_path / "scale.json"
    subprocess.run([sys.executable, ROOT / "benchmarks" / "scale.py", "--out", out], check=True, cwd=ROOT)
    result = json.loads(out.read_text())
    assert result["num_pictures"] == 1_600_000
    assert result["num_outputs"] == 5337
    assert sum(result["seconds"].values()) < 180
    assert result["seconds"]["first batch of the sampler"] < 2
    assert result["peak_gb"] < 4
