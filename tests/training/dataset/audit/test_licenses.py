"""Each license has one identifier, and is classified by whether it allows commercial use."""

import json

import msgspec
import pytest

from tests.make import from_table
from tests.training.dataset.labeled import picture
from training.dataset.audit.licenses import (
    commercial_use,
    joint_commercial_use,
    license_id,
    license_summaries,
    may_be_shown,
)


@from_table
def test_a_license_has_one_name_however_it_is_written(written, identifier):
    assert license_id(written) == identifier
    assert license_id(identifier) == identifier


@from_table
def test_a_license_says_whether_commercial_use_is_allowed(terms, use):
    assert commercial_use(terms) == use


@from_table
def test_a_condition_beside_a_free_license_is_kept(written):
    assert commercial_use(written) == "not_allowed"
    assert commercial_use(license_id(written)) == "not_allowed"


@pytest.mark.parametrize(
    "written",
    [
        "Attribution required",
        "For educational use; attribution to the museum",
        "Creative Commons license of the page; attribution",
        "CC-BY 4.0, see the restrictions of the museum",
        "CC-BY-SA 4.0 unless noted otherwise",
        "CC BY 4.0, aber siehe Anhang",
        "CC0 (metadata), CC BY 4.0 (images)",
        "CC0 except for the photographs",
        "CC BY 4.0 (commercial use allowed)",
        "no known copyright restrictions",
        "CC",
    ],
)
def test_a_text_that_is_not_understood_is_never_free(written):
    assert (license_id(written), commercial_use(written), may_be_shown(written)) == (written, "unknown", False)


def test_one_license_that_forbids_commercial_use_decides_for_all():
    assert joint_commercial_use(["CC-BY-4.0", "unknown", "CC-BY-NC-4.0"]) == "not_allowed"
    assert joint_commercial_use(["CC-BY-4.0", "unknown"]) == "unknown"
    assert joint_commercial_use(["CC-BY-4.0", "CC0-1.0"]) == "allowed"
    assert joint_commercial_use([]) == "unknown"


def test_licenses_and_authors_are_counted_by_source():
    pictures = [
        picture("wild:1", license="cc-by-nc", author="Ann"),
        picture("wild:2", license="Attribution-NonCommercial License", author="Ann"),
        picture("wild:3", license="CC0", author="Bo"),
        picture("wild:4"),
        picture("house:1", license="CC BY 4.0", author="Cy"),
    ]
    found = license_summaries(pictures)
    wild, house = found["wild"], found["house"]
    assert wild.licenses == {"CC-BY-NC": 2, "CC0-1.0": 1, "unknown": 1}
    assert (wild.num_authors, wild.commercial_use) == (2, "not_allowed")
    assert wild.sentence == (
        "may not be used commercially: 2 of 4 pictures forbid it, and 1 of 4 pictures have no license that is known"
    )
    assert (house.commercial_use, house.sentence) == (
        "allowed",
        "may be used commercially: the licenses of all 1 pictures allow it",
    )
    assert json.loads(msgspec.json.encode(found))["wild"]["licenses"]["CC-BY-NC"] == 2
