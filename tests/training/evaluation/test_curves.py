import io
import json

import numpy as np
import pytest
from PIL import Image

from models.errors import DataError
from training.evaluation.curves import learning_curves, read_run, smoothed


def reading(step, *losses):
    return {"event": "losses", "step": step, "losses": list(losses), "lr": {"backbone": 0.1, "head": 0.3}}


def epoch(step, top1, speed=100.0):
    found = {"top1": {"value": top1, "num_pictures": 9, "interval_95": [top1 - 0.1, top1 + 0.1]}, "loss": 1.0}
    return {"event": "epoch", "step": step, "pictures_per_s": speed, "validation": found}


def write_run(folder, *events):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture
def run(tmp_path):
    events = [
        {"event": "start", "step": 0},
        reading(2, 4.0, 3.0),
        epoch(2, 0.2) | {"event": "validation"},  # within the epoch
        reading(4, 2.0, None),
        epoch(4, 0.3),
        reading(5, 9.0),
    ]
    again = [{"event": "resume", "step": 4}, {"event": "start", "step": 4}, reading(6, 2.0, 1.0), epoch(6, 0.5, 90.0)]
    return write_run(tmp_path / "first", *events, *again)


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_a_run_is_read_as_it_counts(run):
    found = read_run(run)
    assert found.name == "first"
    assert found.loss_steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.losses[[0, 1, 2, 4, 5]].tolist() == [4, 3, 2, 2, 1]
    assert np.isnan(found.losses[3])
    assert found.validation_steps.tolist() == [2, 4, 6]
    assert found.top1 == pytest.approx(np.array([[0.2, 0.3, 0.5], [0.1, 0.2, 0.4], [0.3, 0.4, 0.6]]))
    assert found.pictures_per_s.tolist() == [100, 90]
    assert {name: values.tolist() for name, values in found.lr.items()} == {"backbone": [0.1] * 3, "head": [0.3] * 3}


def test_accumulated_losses_lie_between_steps(tmp_path):
    found = read_run(write_run(tmp_path / "run", reading(2, 1.0, 2.0, 3.0, 4.0)))
    assert found.loss_steps.tolist() == [0.5, 1, 1.5, 2]


def test_the_picture_shows_loss_and_interval_of_every_run(run, tmp_path):
    other = write_run(tmp_path / "other", reading(3, 5.0, 4.0, 3.0), epoch(3, 0.7), epoch(6, 0.9))
    one, both = pixels(learning_curves([run])), pixels(learning_curves([run, other]))
    blue, vermilion = np.array([0x00, 0x72, 0xB2]), np.array([0xD5, 0x5E, 0x00])
    height, width = one.shape[:2]
    for panel in (np.s_[: height // 2, : width // 2], np.s_[: height // 2, width // 2 :], np.s_[height // 2 :]):
        assert (np.abs(one[panel] - blue).max(axis=-1) < 8).sum() > 20
        assert (np.abs(one[panel] - vermilion).max(axis=-1) < 8).sum() == 0
        assert (np.abs(both[panel] - vermilion).max(axis=-1) < 8).sum() > 20


def test_a_run_that_was_stopped_before_its_first_reading_is_drawn_empty(tmp_path):
    folder = write_run(tmp_path / "run", {"event": "start", "step": 0})
    assert pixels(learning_curves([folder])).min() < 100


def test_a_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        learning_curves([tmp_path])


def test_smoothing_keeps_a_level_and_lags_behind_a_jump():
    level = np.full(50, 3.0)
    assert smoothed(level, 10) == pytest.approx(level)
    jump = smoothed(np.r_[np.zeros(20), np.ones(20)], 5)
    assert jump[19] == pytest.approx(0)
    assert 0.1 < jump[20] < 0.3
    assert jump[-1] > 0.95
    assert smoothed(np.array([1.0, 2.0, 4.0]), 1) == pytest.approx([1, 2, 4])
    assert len(smoothed(np.empty(0), 0)) == 0
