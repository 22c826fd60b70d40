import sys

import msgspec
import pytest

from tests.training.insight.tuning.stand_in import THREE, TINY, setting
from training.insight.tuning.launch import Limits, Order, TrialLauncher
from training.insight.tuning.setting import Trial


def launch(script, tmp_path, most_s=20.0, wanted=None):
    """Starts a script in the place of a trial."""
    program = tmp_path / "program.py"
    program.write_text("import json, os, signal, sys, time\n" + script)
    limits = Limits(most_s=most_s, most_compiling_s=most_s)
    return TrialLauncher(TINY, THREE, 1, limits, [sys.executable, str(program)])(wanted or setting(8))


def test_a_trial_gets_the_setting_and_gives_what_it_found(tmp_path):
    told = msgspec.json.encode(Trial(setting=setting(8), pictures_per_s=7.0)).decode()
    script = (
        f"open({str(tmp_path / 'order')!r}, 'w').write(sys.stdin.read())\nprint('noise of a compiler')\nprint({told!r})"
    )
    trial = launch(script, tmp_path, wanted=setting(8, channels_last=False))
    assert trial.pictures_per_s == 7.0
    order = msgspec.json.decode((tmp_path / "order").read_bytes(), type=Order)
    assert order.recipe["schedule"]["batch_size"] == 8
    assert order.recipe["hardware"]["channels_last"] is False
    assert order.local_rank == 1
    assert order.classes == THREE


def test_a_trial_that_fails_is_an_outcome_with_its_last_words(tmp_path):
    trial = launch("raise ValueError('no such kernel')", tmp_path)
    assert trial.outcome == "crashed"
    assert trial.note == "ValueError: no such kernel"


def test_a_killed_trial_is_an_outcome(tmp_path):
    trial = launch("os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert trial.outcome == "crashed"
    assert "SIGKILL" in trial.note


def test_a_trial_that_takes_too_long_is_ended(tmp_path):
    trial = launch("time.sleep(60)", tmp_path, most_s=0.3)
    assert trial.outcome == "too_slow"


def test_a_trial_does_not_know_of_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    script = "sys.exit(str([name for name in os.environ if name == 'RANK' or 'ELASTIC' in name]))"
    assert launch(script, tmp_path).note == "[]"


@pytest.mark.parametrize(("pairs", "side_px"), [((), 32), (((0, 64), (1, 32)), 64)])
def test_the_largest_pictures_are_measured(tmp_path, pairs, side_px):
    recipe = msgspec.structs.replace(TINY, pictures=msgspec.structs.replace(TINY.pictures, progressive=pairs))
    program = [sys.executable, "-c", "import sys, json; sys.exit(str(json.load(sys.stdin)['side_px']))"]
    assert TrialLauncher(recipe, THREE, 0, Limits(), program)(setting()).note == str(side_px)
