"""A bundle answers where the packages of the service are missing."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.gpu.ask import Ask, ask
from models.errors import UnsupportedFormat
from tests.training.small import ROOT, draw

BUNDLE = next((ROOT / "models" / "releases").iterdir())


def test_without_litestar_the_bundle_answers_in_the_program_itself(tmp_path):
    picture = tmp_path / "flower.jpg"
    draw("crimson", "ellipse", 1, size=(320, 240)).save(picture)
    hidden = "import sys; sys.modules['litestar'] = None; sys.argv = {!r}; import runpy; runpy.run_path({!r}, {})"
    program = str(ROOT / "benchmarks" / "gpu" / "ask.py")
    words = [program, "--bundle", str(BUNDLE), "--picture", str(picture), "--out", str(tmp_path / "answer.json")]
    code = hidden.format(words, program, "run_name='__main__'")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer.json").read_text())["verdict"]["rank"]
    assert "Answered in" in done.stdout


def test_what_is_no_picture_is_told(tmp_path):
    (tmp_path / "note.jpg").write_text("no picture")
    with pytest.raises(UnsupportedFormat):
        ask(Ask(bundle=BUNDLE, picture=tmp_path / "note.jpg"))
