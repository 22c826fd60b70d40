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


@pytest.mark.parametrize(("share", "text"), [(0.05, "5%"), (0.9, "90%"), (0.999, "99.9%"), (0.95, "95%")])
def test_limit_is_exact(page, share, text):
    assert page("formats.js", "percentExact", share) == text


@pytest.mark.parametrize(("number", "text"), [(1, "one"), (4, "four"), (10, "ten"), (11, "11"), (5337, "5,337")])
def test_small_numbers_are_words(page, number, text):
    assert page("formats.js", "numberWord", number) == text


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_joined(page, words, text):
    assert page("formats.js", "joined", words) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(640, "1 kB"), (640_000, "640 kB"), (1_250_000, "1.3 MB"), (20_000_000, "20 MB")]
)
def test_bytes_have_a_unit(page, num_bytes, text):
    assert page("formats.js", "fileSize", num_bytes) == text
