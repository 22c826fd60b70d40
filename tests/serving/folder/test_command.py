"""Flags that make no sense together are refused, not ignored."""

from pathlib import Path

import pytest

from models.errors import InputError
from serving.folder.command import IdentifyFolder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"part_rows": -5}, r"--part-rows is out of range \(got -5; expected int >= 1\)"),
        ({"part_rows": 0}, "--part-rows"),
        ({"k": 0}, "--k is out of range"),
        ({"k": 51}, r"--k .*expected int <= 50"),
        ({"devices": 0}, "--devices"),
        ({"num_runs": 0}, "--num-runs"),
        ({"max_picture_bytes": -1}, "--max-picture-bytes"),
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


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"links": True}, "need --copy-to"),
        ({"by": "genus"}, "need --copy-to"),
        ({"photographs": "s3://garden", "links": True, "copy_to": Path("sorted")}, "a folder of this machine"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(flags, words):
    with pytest.raises(InputError, match=words):
        IdentifyFolder(out="out", **flags)
