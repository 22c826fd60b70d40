"""An exchange tries again where that helps, and as late as the service asks for."""

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.client.exchange import EVERYTHING, Asking, ServiceRefusal, ServiceUnreachable, exchange
from serving.schemas import Identification, ModelName, Problem, VerdictView

ANSWER = Identification(
    "id", ModelName("tiny", "1", "0"), VerdictView("uncertain", None, 0.1, "reason", None, False), [], [], [], None,
    None, None, [], [],
)  # fmt: skip


def ok():
    return httpx.Response(200, content=msgspec.json.encode(ANSWER))


def refusal(status, retry_after=None):
    problem = Problem("urn:x", "title", status, f"refused with {status}", "some_code", "id")
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, content=msgspec.json.encode(problem), headers=headers)


class Talk:
    """Plays the service; counts time without waiting."""

    def __init__(self, *outcomes, timeout_s=120.0, chance=lambda low, high: high, asking=EVERYTHING, pictures=(b"1",)):
        self.now, self.requests, self.pauses, self.outcomes = 0.0, [], [], list(outcomes)
        self.steps = exchange(
            "http://host:1/", pictures, asking, timeout_s=timeout_s, headers={}, clock=lambda: self.now, chance=chance
        )

    def run(self):
        outcome = None
        while True:
            try:
                step = self.steps.send(outcome)
            except StopIteration as end:
                return end.value
            if isinstance(step, httpx.Request):
                self.requests.append(step)
                outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
            else:
                self.now += step
                self.pauses.append(step)
                outcome = None


def test_a_request_asks_for_everything():
    asking = Asking(k=3, coverage=0.9, coverage_kind="macro", taxa=("Rosa", "list:de"))
    talk = Talk(ok(), asking=asking, pictures=(b"one", b"two"))
    assert talk.run() == ANSWER
    (request,) = talk.requests
    assert request.url == "http://host:1/identify?k=3&taxa=Rosa&taxa=list%3Ade&coverage=0.9&coverage_kind=macro"
    assert request.headers["Prefer"] == "wait=120"
    body = request.read()
    assert body.count(b'; name="image"') == 2
    assert b"one" in body
    assert b"two" in body


def test_retry_after_is_the_least_pause_and_pauses_grow():
    talk = Talk(refusal(503, "3"), refusal(429, "1"), refusal(504), ok())
    talk.run()
    assert talk.pauses == [3 + 0.5, 1 + 1.0, 0 + 2.0]
    assert [request.headers["Prefer"] for request in talk.requests] == ["wait=120", "wait=116", "wait=114", "wait=112"]


@given(st.floats(0, 1))
def test_pauses_are_random_up_to_their_limit(share):
    talk = Talk(*[refusal(503, "1")] * 12, ok(), timeout_s=1e6, chance=lambda low, high: low + share * (high - low))
    talk.run()
    assert all(1 <= pause <= 31 for pause in talk.pauses)


def test_the_last_refusal_is_raised_when_the_time_is_over():
    talk = Talk(refusal(503, "1"), timeout_s=10)
    with pytest.raises(ServiceRefusal, match="refused with 503") as caught:
        talk.run()
    assert caught.value.document.code == "some_code"
    assert talk.now < 10


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 422, 500])
def test_a_wrong_request_is_not_sent_again(status):
    talk = Talk(refusal(status, "1"), ok())
    with pytest.raises(ServiceRefusal):
        talk.run()
    assert len(talk.requests) == 1


def test_a_lost_connection_is_tried_again_for_a_while():
    assert Talk(httpx.ReadError("lost"), httpx.ConnectError(""), ok()).run() == ANSWER
    talk = Talk(httpx.ConnectError("refused"))
    with pytest.raises(ServiceUnreachable, match=r"http://host:1/: refused"):
        talk.run()
    assert len(talk.requests) == 7


def test_the_page_of_a_proxy_is_an_error_and_not_a_crash():
    with pytest.raises(ServiceRefusal, match="answered 413"):
        Talk(httpx.Response(413, content=b"<html>")).run()
    assert Talk(httpx.Response(502, content=b"<html>"), ok()).run() == ANSWER
