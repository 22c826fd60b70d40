import pytest
import torch

from benchmarks.gpu.forecasts import FORECASTS
from benchmarks.gpu.step_profile import Result, StepProfile, cases, measure
from benchmarks.result import read_result

TINY = {"architecture": "test_efficientnet", "num_outputs": 3, "picture_px": 32, "batch_sizes": (2, 4), "device": "cpu"}


def test_on_a_gpu_every_precision_layout_and_size_is_measured_and_each_forecast_belongs_to_a_case(tmp_path):
    found = [case.name for case in cases(StepProfile(out=tmp_path / "p.json"), torch.device("cuda"))]
    assert len(found) == len(set(found))
    assert {name for name in FORECASTS["H100"] if name.startswith("fp16")} <= set(found)
    plain = {
        f"{amp}, batch {size}{layout}"
        for amp in ("fp16", "bf16")
        for size in (16, 64, 128, 256)
        for layout in ("", ", NCHW")
    }
    assert plain <= set(found)
    assert {"fp16, batch 16, compiled default", "fp16, batch 16, compiled reduce-overhead"} <= set(found[:6])


def test_what_does_not_fit_into_the_time_is_listed(tmp_path):
    result = measure(StepProfile(**TINY, seconds=0.001, out=tmp_path / "new" / "p.json"))
    written = read_result(tmp_path / "new" / "p.json", Result)
    assert written.left_out == result.left_out
    assert len(result.speeds) <= 1 < len(result.left_out)


@pytest.mark.slow
def test_steps_are_measured_and_a_failure_is_a_result(tmp_path, monkeypatch):
    def fail(*_arguments, **_options):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch, "compile", fail)
    result = measure(StepProfile(**TINY, seconds=100, out=tmp_path / "p.json"))
    speeds = {speed.name: speed for speed in result.speeds}
    assert speeds["bf16, batch 2"].per_s > 0
    assert speeds["bf16, batch 2, compiled default"].failed == "OutOfMemoryError: no memory"
    assert result.operations
    assert not result.left_out
