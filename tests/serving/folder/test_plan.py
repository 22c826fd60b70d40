"""The plan: what is listed once is cut into parts once, by whichever process is first."""

import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.folder.output import OutputFolder, open_output
from serving.folder.photographs import Photograph
from serving.folder.plan import Plan, extend_plan, read_plan
from serving.folder.plants import Plant

RUN = "01234567"


def plant(name, version="1"):
    return Plant(name, (Photograph(f"{name}.jpg", 1, version, {"bed": name}), Photograph(f"{name}2.jpg", 2, "")))


@given(st.lists(st.lists(st.text(min_size=1), unique=True), max_size=4), st.integers(1, 5))
def test_every_plant_is_in_the_plan_that_is_read(extensions, part_rows):
    output, plan = open_output(f"memory://{uuid.uuid4().hex}"), Plan(())
    for names in extensions:
        plan = extend_plan(output, RUN, plan, plan.changed(map(plant, names)), part_rows)
    assert read_plan(output, RUN) == plan
    assert [part.number for part in plan.parts] == list(range(len(plan.parts)))
    assert set(plan.latest_part()) == {name for names in extensions for name in names}
    assert all(len(part.plants) <= part_rows for part in plan.parts)
    assert plan.changed(plant(name) for name in plan.latest_part()) == []


def test_of_several_planners_the_first_counts_and_the_others_add(tmp_path):
    output, plans = OutputFolder(tmp_path), []
    barrier = threading.Barrier(4)
    found = [plant(str(number)) for number in range(20)]

    def make(number):
        barrier.wait()
        plans.append(extend_plan(output, RUN, Plan(()), [*found, plant(f"only {number}")], 3))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plan = read_plan(output, RUN)
    names = [each.name for part in plan.parts for each in part.plants]
    assert len(names) == len(set(names)) == 24
    assert [part.number for part in plan.parts] == list(range(len(plan.parts)))
    assert max(plans, key=lambda each: len(each.parts)) == plan


@pytest.mark.parametrize("run_id", ["76543210", ""])
def test_the_plan_of_another_run_is_not_read(tmp_path, run_id):
    output = OutputFolder(tmp_path)
    extend_plan(output, RUN, Plan(()), [plant("a")], 1)
    assert read_plan(output, run_id) == Plan(())
