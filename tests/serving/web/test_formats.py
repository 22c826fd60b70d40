"""Numbers and lists as people write them."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

many = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    ("score", "text"), [(0.0004, "<0.1%"), (0.9996, ">99%"), (1, "100%"), (0, "0%"), (0.034, "3.4%"), (0.5, "50%")]
)
def test_percentage_is_never_rounded_to_certainty(page, score, text):
    assert page("formats.js", "percent", score) == text


@many
@given(score=st.floats(0, 1))
def test_percentage_is_close_to_the_score(page, score):
    text = page("formats.js", "percent", score)
    assert float(text.strip("<>%")) == pytest.approx(score * 100, abs=1.01)
    assert (text == "100%") == (score == 1)
