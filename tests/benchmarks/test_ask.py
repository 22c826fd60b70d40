"""A bundle is asked both ways; both stand on the same preprocessing and ranking."""

import json
import os
import subprocess
import sys

import pytest

import benchmarks.gpu.ask as module
from benchmarks.gpu.ask import Ask, ask
from models.errors import BundleError, UnsupportedFormat
from tests.training.small import ROOT, draw

BUNDLE = next((ROOT / "models" / "releases").iterdir())


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("drawn") / "flower.jpg"
    draw("crimson", "ellipse", 1, size=(320, 240)).save(path)
    return path


@pytest.mark.slow
def test_the_service_and_the_bundle_give_one_answer_and_say_who_gave_it(picture, tmp_path, monkeypatch, capsys):
    served = ask(Ask(bundle=BUNDLE, picture=picture, out=tmp_path / "served.json"))
    monkeypatch.setattr(module, "_has_service", lambda: False)
    alone = ask(Ask(bundle=BUNDLE, picture=picture, out=tmp_path / "alone.json"))
    assert (served.asked, alone.asked) == ("the service", "the bundle in process")
    assert served.verdict["name"] == alone.verdict["name"]
    assert served.verdict["score"] == pytest.approx(alone.verdict["score"], abs=1e-3)
    written = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("served", "alone")]
    assert [one["asked"] for one in written] == ["the service", "the bundle in process"]
    told = capsys.readouterr().out
    assert "The service answered (litestar is installed)" in told
    assert "The bundle in process answered (litestar is not installed)" in told


def test_without_litestar_the_bundle_answers_in_the_program_itself(picture, tmp_path):
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
    assert json.loads((tmp_path / "answer.json").read_text())["asked"] == "the bundle in process"


@pytest.mark.slow
def test_a_service_that_does_not_start_is_told(picture, tmp_path):
    with pytest.raises(BundleError, match="does not become ready"):
        ask(Ask(bundle=tmp_path, picture=picture))


def test_what_is_no_picture_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_has_service", lambda: False)
    (tmp_path / "note.jpg").write_text("no picture")
    with pytest.raises(UnsupportedFormat):
        ask(Ask(bundle=BUNDLE, picture=tmp_path / "note.jpg"))
