import json

import pytest

from benchmarks.gpu.service_speed import BatchRate, Refusal, Served, ServiceSpeed, Start, measure, targets
from tests.serving.tiny import seal_tiny_bundle

ALONE = BatchRate(batch_size=32, per_s=1000.0, run_ms=60.0)
START = Start(ready_s=3.0, first_ms=30.0, later_ms=[20.0, 10.0, 30.0])
REFUSED = [Refusal("no GPU is visible", 1, "CUDA was requested"), Refusal("hidden", 1, "CUDA was requested")]


def served(per_s=950.0, p99_ms=100.0):
    return Served("network size", 64, per_s, 60.0, p99_ms, {"200": 900}, 0.3)


def held(*arguments, applies=True):
    return [target.holds for target in targets(*arguments, applies=applies)]


def test_a_fast_service_that_refuses_to_start_without_cuda_reaches_every_goal():
    assert held(ALONE, START, served(), REFUSED) == [True] * 4


@pytest.mark.parametrize(
    ("arguments", "missed"),
    [
        ((ALONE, START, served(per_s=890.0), REFUSED), 0),
        ((ALONE, START, served(p99_ms=121.0), REFUSED), 1),
        ((ALONE, Start(3.0, 41.0, [20.0]), served(), REFUSED), 2),
        ((ALONE, START, served(), [*REFUSED, Refusal("ran on", None, "")]), 3),
        ((ALONE, START, served(), [*REFUSED, Refusal("another failure", 1, "no such bundle")]), 3),
    ],
)
def test_each_goal_can_be_missed(arguments, missed):
    assert [number for number, holds in enumerate(held(*arguments)) if not holds] == [missed]


def test_on_a_cpu_only_the_refusals_are_judged():
    assert held(ALONE, START, served(), REFUSED, applies=False) == [None, None, None, True]


def test_a_service_without_good_answers_has_no_percentile():
    assert held(ALONE, START, served(p99_ms=None), REFUSED)[1] is None


@pytest.mark.slow
def test_a_run_on_a_cpu_measures_everything(tmp_path, capsys):
    bundle = seal_tiny_bundle(tmp_path / "tiny", tmp_path).folder
    flags = {"provider": "cpu", "precision": "fp32", "clients": 2, "seconds": 0.3, "lead_in_s": 0.1}
    result = measure(ServiceSpeed(bundle=bundle, out=tmp_path / "service.json", **flags))
    assert [each.batch_size for each in result.alone] == [1]
    assert [(each.picture, each.clients) for each in result.served] == [
        (picture, clients) for picture in ("network size", "1 MP") for clients in (2, 1)
    ]
    assert all(set(each.words) == {"200"} for each in result.served)
    assert [each.exit_code for each in result.refusals] == [1, 1]
    assert len(result.start.later_ms) == 20
    written = json.loads((tmp_path / "service.json").read_text())
    assert written["versions"]["onnxruntime"]
    assert str(tmp_path) not in json.dumps(written["network"])
    assert "pictures a day" in capsys.readouterr().out
