"""The losses of 20 steps of `debug.toml` must be the recorded ones, so that a refactoring does not change training.

After an intended change, record them again with `python -m tests.training.engine.test_debug_losses`. Measured
differences: 3e-7 between SSE4.1 and AVX2, 2e-6 between NCHW and NHWC, and 1.4e-3 with a head learning rate 5 % higher.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.training.debug_data import debug_data, draw_debug_data
from tests.training.small import command, events
from training.train import train

RECORDED = Path(__file__).with_name("debug_losses.json")
NUM_STEPS, TOLERANCE = 20, 1e-3


def debug_losses(data, run):
    """One loss per step."""
    torch.set_num_threads(1)
    train(command(data, run, "--max-steps", NUM_STEPS, recipe="debug"))
    return [loss for event in events(run, "losses") for loss in event["losses"]]


def test_twenty_steps_give_the_recorded_losses(tmp_path, tmp_path_factory):
    recorded = json.loads(RECORDED.read_text())["losses"]
    losses = debug_losses(debug_data(tmp_path_factory), tmp_path / "run")
    assert len(losses) == NUM_STEPS
    assert losses == pytest.approx(recorded, rel=TOLERANCE)


def record():
    with TemporaryDirectory() as folder:
        losses = debug_losses(draw_debug_data(Path(folder)), Path(folder) / "run")
    RECORDED.write_text(json.dumps({"torch": torch.__version__, "losses": losses}, indent=1) + "\n")


if __name__ == "__main__":
    record()
