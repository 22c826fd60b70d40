"""The size to which the page reduces a large picture; what becomes of its pixels is for `test_browser_pictures.py`."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

many = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
sides = st.integers(1, 60_000)


def test_photograph_of_a_phone_has_1600_px_at_its_longest(page):
    assert page("shrink.js", "fitted", {"width": 3024, "height": 4032}) == {"width": 1200, "height": 1600}


@many
@given(width=sides, height=sides)
def test_proportions_stay_and_no_side_grows(page, width, height):
    fitted = page("shrink.js", "fitted", {"width": width, "height": height})
    assert max(fitted.values()) == min(1600, max(width, height))
    assert 1 <= fitted["width"] <= width
    assert 1 <= fitted["height"] <= height
    scale = max(fitted.values()) / max(width, height)
    assert fitted["width"] == pytest.approx(width * scale, abs=1)
    assert fitted["height"] == pytest.approx(height * scale, abs=1)
