import json

import msgspec
import pytest
import torch

from benchmarks.train_speed import Result, TrainSpeed, measure
from benchmarks.train_speed_arms import open_arm

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm leaves them to the collector
CPU = torch.device("cpu")
TINY = {"architecture": "test_efficientnet", "num_outputs": 3, "picture_px": 32, "batch_size": 4, "amp": "off"}


def tiny(**changes):
    return TrainSpeed(**(TINY | {"device": "cpu", "rounds": 2, "steps": 2} | changes))


@pytest.mark.parametrize("name", ["ours", "timm"])
def test_a_loop_really_trains(name):
    arm = open_arm(name, tiny().recipe, 3, CPU)
    network = arm._model if name == "timm" else arm._engine.network
    before = [value.clone() for value in network.parameters()]
    arm.take(2)
    after = list(network.parameters())
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) > 0.9 * len(before)
    assert all(bool(value.isfinite().all()) for value in after)


def test_both_loops_train_the_same_network_by_the_same_rules():
    recipe = tiny().recipe
    ours, timm = open_arm("ours", recipe, 3, CPU), open_arm("timm", recipe, 3, CPU)
    network = ours._engine.network.timm_model
    assert network.state_dict().keys() == timm._model.state_dict().keys()
    assert type(ours._engine.optimizer) is type(timm._optimizer) is torch.optim.AdamW
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(ours._engine.loss(logits, labels), timm._loss(logits, labels))
    for loop in (network, timm._model):
        assert loop.training
        assert loop.conv_stem.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_a_run_compares_the_loops_in_turns_and_writes_the_result(tmp_path, capsys):
    out = tmp_path / "new" / "train_speed.json"
    measure(tiny(arms=("ours", "timm"), out=out))
    written = msgspec.json.decode(out.read_bytes(), type=Result)
    assert [rate.arm for rate in written.rates] == ["ours", "timm"]
    assert all(len(rate.per_s) == 2 and min(rate.per_s) > 0 and rate.warmup_s > 0 for rate in written.rates)
    assert {"processor", "git_commit"} <= set(json.loads(out.read_text())["machine"])
    assert "| ours |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_compiled_loops_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # another's interrupted compilation is not ours
    measure(tiny(arms=("ours-compiled", "timm-compiled"), rounds=1))
    assert "| ours-compiled |" in capsys.readouterr().out


@pytest.mark.gpu
def test_on_a_gpu_both_loops_scale_their_loss():
    found = measure(TrainSpeed(picture_px=64, batch_size=8, rounds=1, steps=3, arms=("ours", "timm")))
    assert all(rate.per_s[0] > 0 for rate in found.rates)
