import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures_scale import FiguresScale, draw
from models.ranking import output_probabilities

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_drawn_has_right_and_wrong_answers_and_strangers_that_are_less_sure(tmp_path):
    command = FiguresScale(
        pictures=400, calibration=60, training=50, strangers=300, outputs=120, features=8, folder=tmp_path
    )
    drawn = draw(command)
    assert len(drawn.taxonomy.outputs) == 120 > len(drawn.taxonomy.taxa)
    logits = drawn.test.outputs.logits[:]
    assert 0.7 < (logits.argmax(axis=1) == drawn.test.labels).mean() < 1
    sure = [
        output_probabilities(outputs.logits[:], 1.0).max(axis=1).mean() for outputs in (drawn.things, drawn.unknown)
    ]
    assert sure[0] < sure[1] < output_probabilities(logits, 1.0).max(axis=1).mean()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_judging_needs_far_less_memory_than_the_logits_as_probabilities(tmp_path):
    out = tmp_path / "figures_scale.json"
    flags = ["--pictures", "40000", "--calibration", "3000", "--training", "1000", "--strangers", "200"]
    flags += ["--outputs", "3000", "--features", "64", "--out", str(out)]
    subprocess.run([sys.executable, ROOT / "benchmarks" / "figures_scale.py", *flags], check=True, cwd=ROOT)
    result = json.loads(out.read_text())
    assert (result["num_pictures"], result["num_outputs"]) == (40_000, 3000)
    assert result["peak_gb"] < 40_000 * 3000 * 8 / 1e9  # one matrix in double precision, of which the figures had two
