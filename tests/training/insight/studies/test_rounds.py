"""Rounds over arms, with instant runs."""

import os
import signal
from pathlib import Path

import pytest

from models.errors import BotanifyError
from tests.training.insight.studies.planted import result
from tests.training.small import RECIPE
from training.insight.studies import rounds
from training.insight.studies.arms import StudyPaused, TimeSlice
from training.insight.studies.optimizations import Optimizations, arms
from training.insight.studies.report import Content, read_study
from training.insight.studies.results import Arm
from training.insight.studies.rounds import StudyOptions, order_of_round, run_rounds, run_study, validated_last

ARMS = [Arm(name, (), "") for name in ("first", "second", "third")]


def plan(folder, **changes):
    return StudyOptions(**({"data": folder, "out": folder, "recipe": RECIPE, "device": "cpu"} | changes))


@pytest.fixture
def asked(monkeypatch):
    """What run_arm was asked for: (folder, arm, seed, epochs, seconds); arms named in `fails` end with an error."""

    def run_arm(recipe, arm, seed, folder, common, *, until, max_seconds=None):
        if until.is_over:
            raise StudyPaused("the time is over")
        noted.append((folder.name, arm.name, seed, common[common.index("--epochs") + 1], max_seconds))
        return result(arm, seed, error="error (x): broken." if arm.name in noted.fails else "")

    class Noted(list):
        fails = ()

    noted = Noted()
    monkeypatch.setattr(rounds, "run_arm", run_arm)
    return noted


def test_every_arm_runs_once_a_round_and_every_round_has_all(asked, tmp_path):
    found = []
    options, epochs = plan(tmp_path, seeds=(4, 7)), {arm.name: n for n, arm in enumerate(ARMS, 2)}
    flags = {"flags": lambda arm: validated_last(options, epochs[arm.name]), "max_seconds": 9.0}
    run_rounds(options, ARMS, "part", found, until=TimeSlice(), **flags)
    assert sorted(asked[:3]) == [("part", arm.name, 4, str(n), 9.0) for n, arm in enumerate(ARMS, 2)]
    assert {(name, seed) for _, name, seed, *_ in asked[3:]} == {(arm.name, 7) for arm in ARMS}
    assert [(each.arm.name, each.seed) for each in found] == [(name, seed) for _, name, seed, *_ in asked]


def test_no_arm_always_follows_the_same_one():
    """With the default arms and seeds of the optimizations study."""
    seeds = Optimizations(data=Path(), out=Path()).seeds
    orders = [[arm.name for arm in order_of_round(arms("cuda", "fp16"), *each)] for each in enumerate(seeds)]
    before = {name: {["", *order][order.index(name)] for order in orders} for name in orders[0]}
    assert len(orders) == 3
    assert [name for name, predecessors in before.items() if len(predecessors) < 2] == []


def test_the_order_of_a_round_is_drawn_by_its_seed_and_always_the_same():
    many = [Arm(str(number), (), "") for number in range(6)]
    orders = [tuple(arm.name for arm in order_of_round(many, 1, seed)) for seed in range(60)]
    assert len(set(orders)) > 50
    assert {order[0] for order in orders} == {arm.name for arm in many}
    assert orders == [tuple(arm.name for arm in order_of_round(many, 1, seed)) for seed in range(60)]


def test_the_first_round_begins_with_what_the_others_are_compared_with():
    assert {order_of_round(ARMS, 0, seed)[0].name for seed in range(20)} == {"first"}


def test_a_study_whose_first_arm_fails_ends_at_once(asked, tmp_path):
    asked.fails = ("first",)
    with pytest.raises(BotanifyError, match="the first run failed"):
        run_rounds(plan(tmp_path), ARMS, "part", [], until=TimeSlice())
    assert len(asked) == 1


def test_another_arm_that_fails_holds_up_none(asked, tmp_path):
    asked.fails, found = ("second",), []
    run_rounds(plan(tmp_path), ARMS, "part", found, until=TimeSlice())
    assert sum(bool(each.error) for each in found) == 3
    assert len(found) == 9


def test_arms_that_are_compared_with_others_may_fail_first(asked, tmp_path):
    asked.fails, found = ("first", "second", "third"), []
    run_rounds(plan(tmp_path), ARMS, "part", found, until=TimeSlice(), first_must_run=False)
    assert len(found) == 9


def content(results):
    return Content(name="small", title="", about="", arms=results, tables=[], findings=[])


def test_a_study_that_gets_sigterm_between_two_runs_writes_what_it_has(asked, data, tmp_path, monkeypatch):
    found, run_arm = [], rounds.run_arm

    def ends_after_two(*arguments, **limits):
        ended = run_arm(*arguments, **limits)
        if len(asked) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return ended

    monkeypatch.setattr(rounds, "run_arm", ends_after_two)
    options = plan(tmp_path, data=data)
    with pytest.raises(StudyPaused):
        run_study(
            options, (), lambda until: run_rounds(options, ARMS, "part", found, until=until), lambda: content(found)
        )
    kept = read_study(tmp_path / "small.json")
    assert len(kept.arms) == 2
    assert kept.findings[0].text == (
        "**Unfinished**: runs are missing, and the conclusions may change (the time is over)."
    )


def test_sigterm_while_the_result_is_written_does_not_interrupt_it(data, tmp_path):
    def describe():
        os.kill(os.getpid(), signal.SIGTERM)
        return content([result(ARMS[0], 0)])

    study = run_study(plan(tmp_path, data=data), (), lambda until: None, describe)
    assert len(read_study(tmp_path / "small.json").arms) == len(study.arms) == 1
