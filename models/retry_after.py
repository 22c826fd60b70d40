"""Reads the header `Retry-After`, with which a server says when to ask again (RFC 9110, 10.2.3)."""

import time
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_s(text: str) -> float:
    """Returns the seconds of a number or until a date; 0 for anything else."""
    if text.isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # such as a year with 14 digits
        return 0.0
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
