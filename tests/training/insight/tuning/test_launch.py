import sys

import msgspec
import pytest

from tests.training.insight.tuning.stand_in import THREE, TINY, setting
from training.insight.tuning.launch import TimeLimits, TrialLauncher, TrialRequest
from training.insight.tuning.setting import Trial


def launch(script, tmp_path, max_s=20.0, wanted=None):
    """Runs a script instead of a trial."""
    program = tmp_path / "program.py"
    program.write_text("import json, os, signal, sys, time\n" + script)
    limits = TimeLimits(max_s=max_s, max_compiling_s=max_s)
    return TrialLauncher(TINY, THREE, 1, limits, [sys.executable, str(program)])(wanted or setting(8))


def test_a_trial_receives_the_setting_and_returns_its_result(tmp_path):
    result = msgspec.json.encode(Trial(setting=setting(8), pictures_per_s=7.0)).decode()
    script = f"open({str(tmp_path / 'request')!r}, 'w').write(sys.stdin.read())\nprint('compiling')\nprint({result!r})"
    trial = launch(script, tmp_path, wanted=setting(8, channels_last=False))
    assert trial.pictures_per_s == 7.0
    request = msgspec.json.decode((tmp_path / "request").read_bytes(), type=TrialRequest)
    assert request.recipe["schedule"]["batch_size"] == 8
    assert request.recipe["hardware"]["channels_last"] is False
    assert request.local_rank == 1
    assert request.classes == THREE


def test_a_trial_that_fails_is_an_outcome_with_its_last_line(tmp_path):
    trial = launch("raise ValueError('no such kernel')", tmp_path)
    assert trial.outcome == "crashed"
    assert trial.note == "ValueError: no such kernel"


def test_a_killed_trial_is_an_outcome(tmp_path):
    trial = launch("os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert trial.outcome == "crashed"
    assert "SIGKILL" in trial.note


def test_a_trial_that_takes_too_long_is_killed(tmp_path):
    trial = launch("time.sleep(60)", tmp_path, max_s=0.3)
    assert trial.outcome == "too_slow"


def test_a_trial_gets_no_variables_of_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    script = "sys.exit(str([name for name in os.environ if name == 'RANK' or 'ELASTIC' in name]))"
    assert launch(script, tmp_path).note == "[]"


@pytest.mark.parametrize(("pairs", "side_px"), [((), 32), (((0, 64), (1, 32)), 64)])
def test_the_largest_pictures_are_measured(tmp_path, pairs, side_px):
    recipe = msgspec.structs.replace(TINY, pictures=msgspec.structs.replace(TINY.pictures, progressive=pairs))
    program = [sys.executable, "-c", "import sys, json; sys.exit(str(json.load(sys.stdin)['side_px']))"]
    assert TrialLauncher(recipe, THREE, 0, TimeLimits(), program)(setting()).note == str(side_px)
