"""How long a training takes, told before it begins."""

import time
from pathlib import Path

import pytest
import torch

from models.errors import CheckpointError
from tests.training.small import RECIPE
from training.forecast import on_this_machine
from training.recipe import read_recipe
from training.train import parse, train
from training.tuning_trial import Trial

CPU = torch.device("cpu")


@pytest.fixture
def speeds(monkeypatch):
    """Pictures a second of the trials to come, which take time but nothing of the processor."""
    found = []

    def trial(recipe, *_):
        time.sleep(0.02)
        return (
            Trial(batch_size=4, pictures_per_s=found.pop(0)) if found else Trial(batch_size=4, outcome="does_not_fit")
        )

    monkeypatch.setattr("training.tuning_trial.time_batch_size", trial)
    return found


def test_the_time_is_that_of_all_epochs_by_the_speed_of_some_steps(speeds):
    speeds += [10.0]
    said = on_this_machine(read_recipe(RECIPE), 1800, CPU)  # two epochs
    assert said.startswith("forecast for 1,800 pictures, CPU, ")
    assert said.endswith("1 thread: about 6 min, and some more to validate")


def test_epochs_of_larger_pictures_take_longer(speeds):
    speeds += [10.0]
    # Six of ten epochs at 160 px, three at 192 px, one at 224 px: 6 + 3 * 1.44 + 1.96 of the smallest.
    assert "about 20 min," in on_this_machine(read_recipe(Path("plants")), 1000, CPU)


def test_where_other_programs_hinder_the_threads_one_is_tried(speeds, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    speeds += [10.0, 60.0]
    assert on_this_machine(read_recipe(RECIPE), 1800, CPU).endswith("with OMP_NUM_THREADS=1 before python 1 min")


def test_a_batch_that_does_not_fit_is_told(speeds):
    assert "a batch of 4 does not fit into the memory" in on_this_machine(read_recipe(RECIPE), 1800, CPU)


def test_a_forecast_needs_no_data_but_the_weights(speeds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    speeds += [10.0]
    train(parse([str(RECIPE), "--forecast", "1800"]))
    assert "about 6 min" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=r"nowhere\.pt"):
        train(parse([str(RECIPE), "--forecast", "1800", "--weights", "nowhere.pt"]))
    assert not any(tmp_path.iterdir())
