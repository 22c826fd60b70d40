"""How long a training takes, told before it begins."""

from pathlib import Path
from unittest import mock

import pytest
import torch
from msgspec.structs import replace

from models.errors import BotanifyError, CheckpointError
from tests.training.small import RECIPE
from training import forecast
from training.forecast import on_this_machine
from training.recipe import read_recipe
from training.train import parse, train

CPU = torch.device("cpu")


@pytest.fixture
def speeds(monkeypatch):
    """Pictures a second of the trial to come; none if they do not fit into the memory."""
    found = []
    monkeypatch.setattr("training.forecast.pictures_per_s", lambda *_: found.pop() if found else None)
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
    speeds += [10.0]  # a frozen network sees each picture once
    assert "about 2 min," in on_this_machine(read_recipe(Path("probe")), 1000, CPU)


def test_a_batch_that_does_not_fit_is_told(speeds):
    assert "a batch of 4 does not fit into the memory" in on_this_machine(read_recipe(RECIPE), 1800, CPU)


def test_the_real_step_is_timed_with_pictures_of_the_largest_size(monkeypatch):
    recipe = read_recipe(RECIPE)
    recipe = replace(recipe, pictures=replace(recipe.pictures, progressive=((0, 64), (1, 32))))
    steps = mock.Mock(wraps=forecast._steps)
    monkeypatch.setattr(forecast, "_steps", steps)
    assert forecast.pictures_per_s(recipe, CPU) > 0
    assert steps.call_args.args[-1] == 64


def test_the_step_that_selects_kernels_is_not_timed(monkeypatch):
    seconds = iter([9.0, 0.1, 0.1, *[0.6] * 5])  # a step each, then six at a time
    monkeypatch.setattr(forecast, "_steps", lambda *_: lambda _: next(seconds))
    assert forecast.pictures_per_s(read_recipe(RECIPE), CPU) == pytest.approx(4 / 0.1)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), MemoryError()],
)
def test_too_little_memory_is_no_speed_and_a_programming_error_is_none(error, monkeypatch):
    micro_step = mock.Mock(side_effect=error)
    monkeypatch.setattr("training.engine.step.Engine.micro_step", micro_step)
    assert forecast.pictures_per_s(read_recipe(RECIPE), CPU) is None
    micro_step.side_effect = RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="shapes"):
        forecast.pictures_per_s(read_recipe(RECIPE), CPU)


def test_a_forecast_needs_no_data_but_the_weights(speeds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    speeds += [10.0]
    train(parse([str(RECIPE), "--forecast", "1800"]))
    assert "timing some steps; on a CPU one may take minutes\nforecast for 1,800" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=r"nowhere\.pt"):
        train(parse([str(RECIPE), "--forecast", "1800", "--weights", "nowhere.pt"]))
    assert not any(tmp_path.iterdir())


def test_a_network_that_cannot_become_a_bundle_is_refused_before_the_hours(monkeypatch):
    monkeypatch.setattr("torch.onnx.export", mock.Mock(side_effect=torch.onnx.OnnxExporterError))
    with pytest.raises(BotanifyError, match="another --architecture"):
        train(parse([str(RECIPE), "--forecast", "1800"]))
