"""Flags that make no sense together are refused, not ignored."""

import pytest

from models.errors import InputError
from serving.folder.command import IdentifyFolder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"k": 0}, r"--k is out of range \(got 0; expected int >= 1\)"),
        ({"k": 51}, r"--k .*expected int <= 50"),
        ({"min_score": 7.0}, r"--min-score .*expected float <= 1.0"),
        ({"min_score": float("nan")}, "--min-score"),
        ({"max_failure_rate": float("inf")}, "--max-failure-rate"),
        ({"coverage": 0.2}, "--coverage"),
        ({"coverage": float("nan")}, "--coverage"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_the_name_of_its_flag(flags, words):
    with pytest.raises(InputError, match=words):
        IdentifyFolder(out="out", **flags)


def test_a_share_cannot_change_the_work_of_all():
    with pytest.raises(InputError, match="once without --part"):
        IdentifyFolder(out="out", part="0/2", retry_failed=True)
