"""The page refuses what the service would refuse, before it sends it."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.web.examples import MODEL

many = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
LIMITS = MODEL["limits"]


@pytest.fixture
def refused(page):
    return lambda *sizes, limits=LIMITS: page("limits.js", "refusal", [{"size": size} for size in sizes], limits)


def test_limits_that_are_not_known_refuse_nothing(refused):
    assert refused(10**12, limits=None) is None


@many
@given(sizes=st.lists(st.integers(1, 30_000_000), min_size=1, max_size=5))
def test_only_what_is_over_a_limit_is_refused(refused, sizes):
    problem = refused(*sizes)
    assert (problem is not None) == (max(sizes) > 20_000_000 or sum(sizes) > 60_000_000 - 20_000)
    assert problem is None or problem["canRetry"] is False


@many
@given(limit=st.integers(1_000, 10**9), excess=st.integers(1, 10**6))
def test_size_that_is_shown_is_over_the_limit_that_is_shown(refused, limit, excess):
    detail = refused(limit + excess, limits={**LIMITS, "picture_bytes": limit})["detail"]
    shown = [float(number) * {"k": 1e3, "M": 1e6}[unit] for number, unit in re.findall(r"([\d.]+) ([kM])B", detail)]
    assert shown[0] > shown[1]
