"""Planted weights of the service: the right goals follow from them."""

import msgspec
import pytest

from benchmarks.serving.flags import PictureFile, write_result
from benchmarks.serving.memory_result import Flood, Hostile, LongRun, Memory, MemoryResult, markdown, targets
from benchmarks.serving.mixture import Tally
from benchmarks.serving.tables import SERVING_TABLES
from models.errors import DataError
from tests.benchmarks.serving.test_comparison import MACHINE, SMALL

LONG_RUN = LongRun(
    20_000, 300.0, 310.0, [290.0, 300.0, 310.0], [Tally("good", "200", 10_000), Tally("broken", "422", 4000)]
)
FLOOD = Flood(10.0, 200.0, {"200": 100, "503": 3900}, 300.0, 500.0, 520.0, 310.0, 0.4)
HOSTILE = Hostile(133_000, 422, 3.0)


def weighed(life=LONG_RUN, flood=FLOOD, hostile=HOSTILE):
    found = MemoryResult(
        machine=MACHINE,
        measured_on="2026-11-21",
        setting=Memory(),
        network=SMALL,
        photograph=PictureFile("12 MP", 12.2, 2_900_000),
        own_versions={},
        life=life,
        flood=flood,
        hostile=hostile,
    )
    return msgspec.structs.replace(found, targets=targets(found))


def test_a_result_is_read_back_from_its_file():
    result = weighed()
    assert msgspec.json.decode(msgspec.json.encode(result), type=MemoryResult) == result
    assert {target.holds for target in result.targets} == {True}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"life": msgspec.structs.replace(LONG_RUN, end_mb=316.0)}, "drift"),
        ({"flood": msgspec.structs.replace(FLOOD, peak_mb=813.0)}, "flood"),
        ({"hostile": Hostile(133_000, 200, 3.0)}, "not refused"),
        ({"hostile": Hostile(133_000, 422, 51.0)}, "extra memory"),
    ],
)
def test_each_goal_can_be_missed(changes, word):
    (missed,) = [target.name for target in weighed(**changes).targets if target.holds is False]
    assert word in missed


def test_unexpected_outcomes_are_listed():
    life = msgspec.structs.replace(LONG_RUN, tallies=[*LONG_RUN.tallies, Tally("good", "500", 3)])
    assert "3 good: 500" in markdown(weighed(life=life))
    assert "requests: none." in markdown(weighed())


def test_the_readme_gets_the_table_of_a_result_with_a_link_to_it(tmp_path):
    path = tmp_path / "serving_memory.json"
    write_result(weighed(), path)
    assert (
        SERVING_TABLES["serving_memory"](path, "results/x.json") == f"[Result](results/x.json). {markdown(weighed())}"
    )


def test_a_file_that_is_not_a_result_is_an_error(tmp_path):
    path = tmp_path / "serving.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"serving\.json is not a result"):
        SERVING_TABLES["serving"](path, "")
