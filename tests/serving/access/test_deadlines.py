"""The header Prefer and its `wait`."""

import time

import pytest

from serving.schemas import preferred_deadline


@pytest.mark.parametrize(
    ("preferences", "expected_s"),
    [
        ([], None),
        (["wait=3"], 3.0),
        (["wait=10"], 10.0),
        (["wait=11"], 10.0),
        (["wait=" + "9" * 400], 10.0),
        (["wait=007"], 7.0),
        (["Wait = 3"], 3.0),
        (["wait\t=\t3"], 3.0),
        (['wait="3"'], 3.0),
        (["respond-async, wait=3"], 3.0),
        (["respond-async", "wait=3"], 3.0),
        (["wait=3; foo=4, wait=5"], 3.0),
        (["return=minimal; foo=\"a, wait=5\", wait=3"], 3.0),
        (['foo="a\\", wait=5", wait=3'], 3.0),
        (["foo; wait=5"], None),
        (["foo=wait=5"], None),
        (["waiting=5"], None),
        (['foo="a, wait=5'], None),
        ([", ,,wait=3,"], 3.0),
        (["wait=0"], None),
        (["wait"], None),
        (["wait="], None),
        (['wait=""'], None),
        (["wait=-3"], None),
        (["wait=+3"], None),
        (["wait=3.5"], None),
        (["wait=3s"], None),
        (["wait=1e1"], None),
        (["wait=٣"], None),
        (['wait="3'], None),
        (["wait=soon, wait=3"], None),
        (["=3"], None),
        (["\x00\xff"], None),
    ],
)  # fmt: skip
def test_wait_is_parsed_according_to_rfc_7240(preferences, expected_s):
    assert preferred_deadline(preferences, 10.0) == expected_s


@pytest.mark.parametrize("text", ['"\\' * 30_000, "wait=3," * 10_000, '"' * 60_001, "a" * 60_000, ",;=" * 20_000])
def test_very_long_header_is_ignored_quickly(text):
    start = time.process_time()
    assert preferred_deadline([text], 10.0) is None
    assert time.process_time() - start < 1
