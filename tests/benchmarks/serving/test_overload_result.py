"""Planted figures of an overload: the right goals and tables follow from them."""

import msgspec
import pytest

from benchmarks.serving.comparison import Compare
from benchmarks.serving.flags import PictureFile
from benchmarks.serving.memory_result import Memory
from benchmarks.serving.overload_result import Burst, Bursts, Overload, OverloadResult, markdown, targets
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Contender
from models.errors import RecipeError
from tests.benchmarks.serving.test_comparison import B4, MACHINE, SMALL

GOOD = Burst(
    setting=ServerConfig(),
    capacity_per_s=10.0,
    offered_per_s=25.0,
    good_per_s=9.8,
    words={"200": 300, "503": 450},
    answer_p50_ms=800.0,
    answer_p99_ms=1400.0,
    refusal_p99_ms=12.0,
    retry_after=1.0,
    idle_ms=100.0,
    next_ms=150.0,
    before_mb=300.0,
    peak_mb=400.0,
    after_mb=310.0,
    lateness_p99_ms=3.0,
    generator_share=0.05,
    processes_left=0,
)
RIVAL = msgspec.structs.replace(
    GOOD, good_per_s=4.9, words={"200": 150, "gave up": 600}, refusal_p99_ms=None, retry_after=None, next_ms=12_000.0
)


def overloaded(*ours, rival=(RIVAL,), network=B4):
    found = OverloadResult(
        machine=MACHINE,
        measured_on="2026-11-21",
        setting=Overload(rounds=len(ours)),
        network=network,
        photograph=PictureFile("12 MP", 12.2, 2_900_000),
        versions={},
        own_versions={},
        servers=[
            Bursts(OURS, "none", list(ours)),
            Bursts(Contender("FastAPI", "full"), "none", list(rival)),
            Bursts(Contender("FastAPI", "full"), "own", list(rival)),
        ],
    )
    return msgspec.structs.replace(found, targets=targets(found))


def missed(*ours, **changes):
    return [target.name for target in overloaded(*ours, **changes).targets if target.holds is False]


def with_(**changes):
    return msgspec.structs.replace(GOOD, **changes)


def test_a_result_is_read_back_from_its_file():
    result = overloaded(GOOD)
    assert msgspec.json.decode(msgspec.json.encode(result), type=OverloadResult) == result


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Overload, {"rounds": 0}),
        (Overload, {"seconds": 5.0, "patience_s": 5.0}),
        (Compare, {"rounds": 0}),
        (Compare, {"concurrencies": (0, 8)}),
        (Memory, {"requests": 10}),
        (Memory, {"factor": 0.0}),
    ],
)
def test_flags_that_would_measure_nothing_are_refused(kind, wrong):
    with pytest.raises(RecipeError, match="--"):
        kind(**wrong)


def test_a_healthy_service_reaches_every_goal():
    result = overloaded(GOOD)
    assert {target.holds for target in result.targets} == {True}
    assert "NO" not in markdown(result)


@pytest.mark.parametrize(
    ("burst", "word"),
    [
        (with_(good_per_s=9.4), "share of its capacity"),
        (with_(good_per_s=8.0, capacity_per_s=8.0), "against FastAPI"),
        (with_(words={"200": 300, "500": 1}), "5xx but 503 and 504"),
        (with_(words={"200": 300, "502": 1}), "5xx but 503 and 504"),
        (with_(words={"200": 300, "504": 1}), "share of 504"),
        (with_(words={"200": 300, "connection lost": 1}), "connections lost"),
        (with_(answer_p99_ms=1501.0), "answers, p99"),
        (with_(refusal_p99_ms=20.1), "refusals, p99"),
        (with_(retry_after=0.99), "Retry-After"),
        (with_(next_ms=201.0), "next request"),
    ],
)
def test_each_goal_can_be_missed(burst, word):
    names = missed(burst)
    assert names
    assert all(word in name for name in names)


def test_one_504_in_a_thousand_is_allowed():
    assert missed(with_(words={"200": 999, "504": 1})) == []


def test_the_worst_round_decides_about_latencies_and_errors():
    assert missed(GOOD, with_(answer_p99_ms=1600.0), rival=(RIVAL, RIVAL)) == ["ours: answers, p99"]


def test_goals_of_rates_apply_to_the_reference_network_only():
    result = overloaded(with_(good_per_s=1.0), network=SMALL)
    assert {target.holds for target in result.targets if "good answers" in target.name} == {None}
    assert {target.holds for target in result.targets if "good answers" not in target.name} == {True}


def test_a_rival_without_answers_has_no_ratio():
    result = overloaded(GOOD, rival=(msgspec.structs.replace(RIVAL, good_per_s=0.0),))
    assert [target.value for target in result.targets if "against" in target.name] == [None, None]


def test_the_table_shows_how_requests_ended():
    page = markdown(overloaded(GOOD))
    (row,) = [line for line in page.splitlines() if line.startswith("| FastAPI, own limits")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells[:5] == ["10.0", "25.0", "4.9", "80 %", "0 %"]
    assert "12,000 ms" in cells
