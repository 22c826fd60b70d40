"""Photographs are grouped into plants."""

import pytest

from models.errors import BotanifyError
from serving.folder.photographs import Photograph
from serving.folder.plants import group_photographs


def photograph(path, **columns):
    return Photograph(path, 1, "1", columns)


PHOTOGRAPHS = [photograph("a/1_x.jpg", bed="n"), photograph("b/2_x.jpg", bed="s"), photograph("a/1_y.jpg", bed="s")]


@pytest.mark.parametrize(
    ("rule", "groups"),
    [
        (None, {"a/1_x.jpg": 1, "b/2_x.jpg": 1, "a/1_y.jpg": 1}),
        ("folder", {"a": 2, "b": 1}),
        ("column:bed", {"n": 1, "s": 2}),
        (r"regex:(\d)_", {"1": 2, "2": 1}),
        (r"regex:\d_", {"1_": 2, "2_": 1}),
    ],
)
def test_rules(rule, groups):
    plants = group_photographs(PHOTOGRAPHS, rule)
    assert {plant.name: len(plant.photographs) for plant in plants} == groups
    assert [plant.name for plant in plants] == list(groups)


@pytest.mark.parametrize(
    "rule", ["folders", "column:", "regex:", "regex:(", "regex:z", "regex:x*", r"regex:([ab]?)\d_", "column:tree"]
)
def test_wrong_rules_are_one_error(rule):
    with pytest.raises(BotanifyError):
        group_photographs(PHOTOGRAPHS, rule)
