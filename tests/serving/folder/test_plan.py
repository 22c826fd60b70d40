"""The plan: what is listed once is cut into parts once, by whichever process is first."""

import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.folder.output import OutputFolder, open_output
from serving.folder.photographs import Photograph
from serving.folder.plan import Plan, count_plans, extend_plan, read_plan
from serving.folder.plants import Plant

RUN = "01234567"


def plant(name, version="1"):
    return Plant(name, (Photograph(f"{name}.jpg", 1, version, {"bed": name}), Photograph(f"{name}2.jpg", 2, "")))


versions = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("12"))


@given(st.lists(versions, max_size=5), st.integers(1, 5))
def test_the_plants_that_were_listed_last_are_in_the_plan_that_is_read(listings, part_rows):
    output, plan = open_output(f"memory://{uuid.uuid4().hex}"), Plan()
    for listed in listings:
        before, plants = plan, [plant(*each) for each in listed.items()]
        plan = extend_plan(output, RUN, plan, plants, part_rows=part_rows)
        in_part = {part.number: {each.name: each for each in part.plants} for part in plan.parts}
        assert {name: in_part[number][name] for name, number in plan.current.items()} == dict(
            zip(listed, plants, strict=True)
        )
        assert plan.parts[: len(before.parts)] == before.parts
        assert extend_plan(output, RUN, plan, plants, part_rows=part_rows) == plan
    assert read_plan(output, RUN) == plan
    assert count_plans(output, RUN) == plan.num_files
    assert [part.number for part in plan.parts] == list(range(len(plan.parts)))
    assert all(len(part.plants) <= part_rows for part in plan.parts)


def test_plants_that_are_back_are_not_planned_again(tmp_path):
    output, first, second = OutputFolder(tmp_path), [plant("a"), plant("b")], [plant("b", "2"), plant("c")]
    plan = extend_plan(output, RUN, Plan(), first, part_rows=1)
    assert plan.current == {"a": 0, "b": 1}
    plan = extend_plan(output, RUN, plan, second, part_rows=1)
    assert plan.current == {"b": 2, "c": 3}
    plan = extend_plan(output, RUN, plan, [plant("a"), *second], part_rows=1)
    assert plan.current == {"a": 0, "b": 2, "c": 3}
    assert plan == read_plan(output, RUN)
    assert [part.number for part in plan.missing({1, 2})] == [0, 3]
    assert [part.number for part in plan.missing({0})] == [2, 3]


def test_a_plant_that_failed_is_planned_again_unless_another_process_did(tmp_path):
    output, listed = OutputFolder(tmp_path), [plant("a"), plant("b")]
    before = extend_plan(output, RUN, Plan(), listed, part_rows=2)
    for _ in range(2):
        plan = extend_plan(output, RUN, before, listed, part_rows=2, failed={"a": 0})
        assert plan.current == {"a": 1, "b": 0}
        assert plan == read_plan(output, RUN)


def test_a_plan_without_its_first_file_can_be_extended(tmp_path):
    output = OutputFolder(tmp_path)
    for number in range(1, 4):
        plan = extend_plan(
            output, RUN, read_plan(output, RUN), [plant(str(each)) for each in range(number)], part_rows=1
        )
    (tmp_path / "plans" / f"plan-0001-{RUN}.json.gz").unlink()
    plan = read_plan(output, RUN)
    assert plan.current == {"0": 0, "2": 2}
    plan = extend_plan(output, RUN, plan, [plant(str(each)) for each in range(4)], part_rows=1)
    assert plan.current == {"0": 0, "1": 3, "2": 2, "3": 4}
    assert plan == read_plan(output, RUN)


def test_of_several_planners_the_first_counts_and_the_others_add(tmp_path):
    output, plans = OutputFolder(tmp_path), []
    barrier = threading.Barrier(4)
    found = [plant(str(number)) for number in range(20)]

    def make(number):
        barrier.wait()
        plans.append(extend_plan(output, RUN, Plan(), [*found, plant(f"only {number}")], part_rows=3))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plan = read_plan(output, RUN)
    names = [each.name for part in plan.parts for each in part.plants]
    assert len(names) == len(set(names)) == 24
    assert plan.current.keys() == set(names), "a planner took away what another one added"
    assert [part.number for part in plan.parts] == list(range(len(plan.parts)))
    assert max(plans, key=lambda each: len(each.parts)) == plan


@pytest.mark.parametrize("run_id", ["76543210", ""])
def test_the_plan_of_another_run_is_not_read(tmp_path, run_id):
    output = OutputFolder(tmp_path)
    extend_plan(output, RUN, Plan(), [plant("a")], part_rows=1)
    assert read_plan(output, run_id) == Plan()
