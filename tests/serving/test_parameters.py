"""Parameters of an identify request: parsed from text, the last value counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import BadParameter
from serving.parameters import Asked, parse_parameters, parse_whole_number


def test_without_parameters_the_defaults_apply():
    assert parse_parameters({}) == Asked()


def test_last_of_several_values_counts():
    assert parse_parameters({"k": ["2", "7"]}).top_k == 7
    with pytest.raises(BadParameter):
        parse_parameters({"k": ["2", "x"]})


@given(st.text() | st.integers(-2, 2000).map(str), st.integers(1, 1000))
def test_only_whole_numbers_in_range_are_accepted(text, maximum):
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum:
        assert parse_whole_number("k", text, maximum) == int(text)
    else:
        with pytest.raises(BadParameter, match=f"from 1 to {maximum}"):
            parse_whole_number("k", text, maximum)
