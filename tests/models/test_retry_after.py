from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.retry_after import retry_after_s


@pytest.mark.parametrize(("later_s", "pause_s"), [(60, 60), (-60, 0), (0, 0)])
@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
def test_retry_after_may_be_a_date(later_s, pause_s, zone, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    assert retry_after_s(formatdate(1_800_000_000 + later_s, usegmt=True).replace("GMT", zone)) == pause_s


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=40))
@example("Mon, 23 Nov 2026 99999999999999999999:00:00 GMT")
@example("Mon, 23 Nov 2026 06:11:21 +999999999999")
@example("9" * 400)
def test_any_retry_after_is_a_pause(text):
    assert retry_after_s(text) >= 0
