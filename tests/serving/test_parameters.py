"""The parameters of an identify request, and the deadline that its client asks for."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import BadParameter
from serving.schemas import Parameters, parse_parameters, preferred_deadline
from tests.make import from_table


def test_last_of_several_values_counts():
    assert parse_parameters({"k": ["2", "7"]}).k == 7
    with pytest.raises(BadParameter):
        parse_parameters({"k": ["2", "x"]})


@given(st.text() | st.integers(-2, 2000).map(str))
def test_only_whole_numbers_in_range_are_accepted(text):
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= 50:
        assert parse_parameters({"k": [text]}).k == int(text)
    elif not text.strip():
        assert parse_parameters({"k": [text]}).k == 5
    else:
        with pytest.raises(BadParameter, match="from 1 to 50"):
            parse_parameters({"k": [text]})


@given(st.text() | st.floats().map(str))
def test_only_coverage_in_range_is_accepted(text):
    try:
        coverage = parse_parameters({"coverage": [text]}).coverage or 0.5
    except BadParameter:
        coverage = 0.5
    assert 0.5 <= coverage <= 0.999


@from_table
def test_coverage_out_of_range_is_refused(text):
    with pytest.raises(BadParameter, match=r"from 0\.5 to 0\.999"):
        parse_parameters({"coverage": [text]})


@from_table
def test_a_computed_coverage_is_the_one_that_was_meant(text, coverage):
    assert parse_parameters({"coverage": [text]}).coverage == coverage


def test_coverage_kind_is_marginal_or_macro():
    assert parse_parameters({}).coverage_kind == "marginal"
    assert parse_parameters({"coverage_kind": ["macro"]}).coverage_kind == "macro"
    with pytest.raises(BadParameter, match="marginal or macro"):
        parse_parameters({"coverage_kind": ["micro"]})


@pytest.mark.parametrize("values", [["x"] * 51, ["x" * 201], ["Rosa", "x" * 5000]])
def test_too_many_or_too_long_taxa_are_refused(values):
    with pytest.raises(BadParameter, match="at most"):
        parse_parameters({"taxa": values})


@pytest.mark.parametrize("empty", ["", " ", "\t"])
def test_an_empty_field_counts_as_not_sent_whatever_its_name(empty):
    assert parse_parameters({name: [empty] for name in Parameters.__struct_fields__}) == Parameters()
    assert parse_parameters({"taxa": [empty, "Rosa", empty], "k": ["7", empty]}) == Parameters(taxa=("Rosa",), k=7)


@from_table
def test_a_checkbox_is_on_or_off(text, is_on):
    assert parse_parameters({"use_exif": [text]}).use_exif is is_on


@pytest.mark.parametrize(
    ("preferences", "expected_s"),
    [
        ([], None),
        (["wait=3"], 3.0),
        (["wait=11"], 10.0),
        (["wait=" + "9" * 400], 10.0),
        (["Wait = 3"], 3.0),
        (['wait="3"'], 3.0),
        (["respond-async, wait=3"], 3.0),
        (["wait=3; foo=4, wait=5"], 3.0),
        (["return=minimal; foo=\"a, wait=5\", wait=3"], 3.0),
        (['foo="a\\", wait=5", wait=3'], 3.0),
        (["foo; wait=5"], None),
        (["waiting=5"], None),
        (['foo="a, wait=5'], None),
        (["wait=0"], None),
        (["wait=-3"], None),
        (["wait=3.5"], None),
        (["wait=1e1"], None),
        (["wait=٣"], None),
        (['wait="3'], None),
        (["wait=soon, wait=3"], None),
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
