"""Whole runs from fixed seeds: every number of their logs, what they learned, and the files that they leave.

After an intended change, record them again with `python -m tests.training.engine.test_runs`. Losses of 20 steps differ
by 3e-7 between SSE4.1 and AVX2, by 2e-6 between NCHW and NHWC, and by 1.4e-3 with a head learning rate 5 % higher.
"""

import json
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.training.debug_data import draw_debug_data
from tests.training.small import RECIPE, command, prepare_flowers, write_things
from training.engine.checkpoint import read_checkpoint
from training.train import train

RECORDED = Path(__file__).with_name("runs.jsonl")
RUNS = tomllib.loads(RECORDED.with_suffix(".toml").read_text())
# What is of this machine or of this hour.
LEFT_OUT = {"time", "recipe", "device", "plan", "seconds", "pictures_per_s", "use", "verdict"}

# Of what ends so; else 1e-3. With SSE4.1 biases differ by 1.1e-3, norms of gradients by 1.7e-3, weights by 6e-7.
TOLERANCES = {"/weight": 1e-5, "/bias": 1e-2, "loss": 1e-4, "norms/0": 1e-2, "moments/exp_avg": 1e-3}
# The features of a probe are rounded to float16, some of them otherwise on another processor: without AVX-512 its loss
# differs by 5e-4, its weights by 4e-5. Its rates are exact.
COARSER = 10


def flat(value, path=""):
    """Path -> number or text, of everything in a nested value; numbers have seven digits."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, part in parts if key not in LEFT_OUT for k, v in flat(part, f"{path}/{key}").items()}
    return {path[1:]: float(f"{value:.7g}") if isinstance(value, float) else value}


def lengths(state):
    """The length of all tensors of a kind in a state, as one vector, by the end of their names."""
    kinds = ("weight", "bias", "running_mean", "running_var", "exp_avg", "exp_avg_sq")
    found = {kind: [value.flatten() for name, value in state.items() if name.endswith(kind)] for kind in kinds}
    return {kind: float(torch.cat(values).norm()) for kind, values in found.items() if values}


def record_of(run):
    """The events of a run's log, and then what it left."""
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = read_checkpoint(run / "last.pt")
    moments = {f"{n}.{name}": value for n, each in last.optimizer["state"].items() for name, value in each.items()}
    states = {"network": last.network, "average": last.ema or {}, "moments": moments, **(last.plant_output or {})}
    learned = {name: lengths(state) for name, state in states.items() if isinstance(state, dict)}
    return [*map(flat, log), flat({"learned": learned, "files": sorted(path.name for path in run.glob("*.pt"))})]


def records(folder, debug_folder):
    """What each run of runs.toml logs and leaves."""
    data, places = prepare_flowers(folder, per_class=12), {name: folder / name for name in RUNS}
    places |= {"things": write_things(folder / "things", 9), "strangers": write_things(folder / "others", 5, first=50)}
    for name, flags in RUNS.items():
        given = (draw_debug_data(debug_folder), "debug") if name == "debug" else (data, RECIPE)
        train(command(given[0], folder / name, *(flag.format(**places) for flag in flags.split()), recipe=given[1]))
    return {name: record_of(folder / name) for name in RUNS}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return records(tmp_path_factory.mktemp("recorded"), tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_logs_and_leaves_what_was_recorded(name, found):
    lines = map(json.loads, RECORDED.read_text().splitlines())
    expected = [line for line in lines if line.pop("run") == name]
    assert len(found[name]) == len(expected)
    for event, recorded in zip(found[name], expected, strict=True):
        coarser = COARSER if name == "probe" else 1
        assert event == {key: near(key, value, coarser) for key, value in recorded.items()}


def near(name, value, coarser):
    rel = next((coarser * rel for end, rel in TOLERANCES.items() if name.endswith(end)), 1e-3)
    return pytest.approx(value, rel=rel, abs=1e-9) if isinstance(value, float) else value


def record():
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        found = records(Path(folder), Path(folder))
    lines = [json.dumps({"run": name} | event) for name, events in found.items() for event in events]
    RECORDED.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    record()
