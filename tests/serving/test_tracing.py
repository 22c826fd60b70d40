"""The trace of a request, in its log lines and its response."""

import re

import pytest
import structlog

from serving.middleware import Trace

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = f"00-{TRACE}-{PARENT}-01"


def test_trace_of_the_caller_is_in_the_log_and_the_response(client):
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        response = client.get("/health/live", headers={"traceparent": SENT})
    trace_id, span_id = re.fullmatch(r"00-(\w{32})-(\w{16})-01", response.headers["traceresponse"]).groups()
    [line] = lines
    assert (line["trace_id"], line["span_id"]) == (trace_id, span_id)
    assert trace_id == TRACE
    assert span_id != PARENT


@pytest.mark.parametrize("value", [SENT, f"00-{TRACE}-{PARENT}-00", f"cc-{TRACE}-{PARENT}-01-more"])
def test_valid_trace_is_taken_up(value):
    assert Trace.of([(b"Traceparent", value.encode())]).trace_id == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "", SENT[:-1], SENT + "-more", SENT.upper(), f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{PARENT}-01\n",
    ],
)  # fmt: skip
def test_malformed_trace_is_ignored(value):
    assert Trace.of([(b"traceparent", value.encode())]) is None
