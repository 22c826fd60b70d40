"""The page sends a request again that the service had no time for: twice, after the time that the service names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

NOW_MS = 1_800_000_000_000  # 2027-01-15 08:00:00 UTC


@given(status=st.integers(400, 599), retry_after_s=st.none() | st.integers(0, 500), num_retries=st.integers(0, 4))
def test_only_a_busy_service_is_asked_again_and_only_twice(page, status, retry_after_s, num_retries):
    refusal = {"status": status, "retryAfterS": retry_after_s}
    seconds = page("retry.js", "waitBeforeRetry", refusal, num_retries)
    is_asked_again = status in {429, 503} and num_retries < 2 and (retry_after_s or 0) <= 60
    assert (seconds is not None) == is_asked_again
    if seconds is not None and retry_after_s is not None:
        assert seconds == max(1, retry_after_s)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3),
        (" 120 ", 120),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 30),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        (None, None),
        ("", None),
        ("soon", None),
    ],
)
def test_time_to_wait_is_a_number_or_a_date(page, header, seconds):
    assert page("retry.js", "secondsToWait", header, NOW_MS) == seconds
