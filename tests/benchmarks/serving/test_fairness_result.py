"""The goals of the attacks, and the table of docs/measurements.md."""

import msgspec
import pytest

from benchmarks.serving.attacks import attacks, from_address
from benchmarks.serving.fairness_result import Attacked, Fairness, FairnessResult, Honest, markdown, targets
from benchmarks.serving.flags import Network, PictureFile
from benchmarks.serving.tables import SERVING_TABLES
from models.errors import RecipeError
from training.machine import Machine

MACHINE = Machine("EPYC", 2, 25.0, "Linux", "3.11", {}, "0" * 40)


def measured(during, alone=None):
    before = Honest({"200": 60}, 100.0, 150.0)
    result = FairnessResult(
        machine=MACHINE,
        measured_on="2026-11-22",
        setting=Fairness(),
        network=Network("tiny", "tiny", 32, 6, "00"),
        photograph=PictureFile("1 MP", 1.0, 300_000),
        own_versions={},
        alone={"200": 80} if alone is None else alone,
        attacks=[Attacked("flood", before, during, {"503": 1_900, "200": 40})],
    )
    return msgspec.structs.replace(result, targets=targets(result))


@pytest.mark.parametrize(
    ("during", "alone", "holds"),
    [
        (Honest({"200": 57, "503": 3}, 300.0, 400.0), {"200": 80}, [True, True, True]),
        (Honest({"200": 56, "503": 4}, 301.0, 400.0), {"200": 80, "503": 1}, [False, False, False]),
        (Honest({"gave up": 60}, None, None), {"200": 80}, [True, False, None]),
    ],
)
def test_the_goals_are_the_share_answered_and_the_latency(during, alone, holds):
    assert [target.holds for target in measured(during, alone).targets] == holds


def test_the_table_shows_each_attack(tmp_path):
    result = measured(Honest({"200": 57, "503": 3}, 180.0, 400.0))
    path = tmp_path / "fairness.json"
    path.write_bytes(msgspec.json.encode(result))
    assert SERVING_TABLES["fairness"](path, "x.json") == f"[Result](x.json). {markdown(result)}"
    assert "| flood | 95% | 100 ms | 180 ms | 400 ms | 40 x 200, 1,900 x 503 |" in markdown(result)


def test_a_measurement_without_requests_is_refused():
    with pytest.raises(RecipeError):
        Fairness(per_s=0)


def test_five_attacks_come_from_an_address_of_their_own():
    assert len(attacks()) == 5
    assert from_address(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "192.0.2.1") == (
        b"GET / HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1\r\nHost: x\r\n\r\n"
    )
