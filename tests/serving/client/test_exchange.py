"""An exchange tries again where that helps, and as late as the service asks for."""

import asyncio
from datetime import date
from unittest import mock

import httpx2
import msgspec
import pytest

from models.errors import InputError
from models.ranking import Verdict
from serving.client import AsyncClient, ServiceRefusal, ServiceUnreachable
from serving.client.clients import EVERYTHING, query_of
from serving.schemas import Identification, ModelName, Parameters, Problem, parse_parameters
from tests.make import cases

ANSWER = Identification(
    "id", ModelName("tiny", "1", "0"), Verdict("uncertain", None, 0.1, "reason", None, False), [], [], [], None,
    None, None, [], [],
)  # fmt: skip


URL = "http://host:1/"
HANGS = object()
"""The outcome of an attempt that gets no answer."""


def ok():
    return httpx2.Response(200, content=msgspec.json.encode(ANSWER))


def refusal(status, retry_after=None):
    problem = Problem("urn:x", "title", status, f"refused with {status}", "some_code", "id")
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx2.Response(status, content=msgspec.json.encode(problem), headers=headers)


class Talk:
    """Plays the service; counts time without waiting."""

    def __init__(self, *outcomes, chance=lambda low, high: high, timeout_s=120.0):
        self.now, self.requests, self.pauses, self.outcomes = 0.0, [], [], list(outcomes)
        self.chance = chance
        self.timeout_s = timeout_s

    async def send(self, request):
        self.requests.append(request)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is HANGS:
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def sleep(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)

    def run(self, url=URL, parameters=EVERYTHING, pictures=(b"1",)):
        return msgspec.json.decode(self.run_json(url, parameters, pictures), type=Identification)

    def fails(self, error, match=None, url=URL):
        """The error of a run, which says what matches."""
        with pytest.raises(error, match=match) as caught:
            self.run(url)
        return caught.value

    def run_json(self, url, parameters=EVERYTHING, pictures=(b"1",)):
        client = AsyncClient(url, timeout_s=self.timeout_s)
        steps = client.identify_json(*pictures, parameters=parameters)
        replaced = {"_now": lambda: self.now, "_sleep": self.sleep, "_chance": self.chance}
        with (
            mock.patch.multiple("serving.client.clients", **replaced),
            mock.patch.object(client, "_send", self.send),
        ):
            return asyncio.run(asyncio.wait_for(steps, 20))


def test_a_request_asks_for_everything():
    parameters = Parameters(k=3, coverage=0.9, coverage_kind="macro", taxa=("Rosa", "list:de"))
    talk = Talk(ok())
    assert talk.run(parameters=parameters, pictures=(b"one", b"two")) == ANSWER
    (request,) = talk.requests
    assert request.url == "http://host:1/identify?k=3&coverage=0.900000000&coverage_kind=macro&taxa=Rosa&taxa=list%3Ade"
    assert request.headers["Prefer"] == "wait=120"
    body = request.read()
    assert body.count(b'; name="image"') == 2
    assert b"one" in body
    assert b"two" in body


def test_the_only_taxon_may_be_a_text():
    assert query_of(Parameters(taxa="Rosa")) == query_of(Parameters(taxa=["Rosa"])) == [("taxa", "Rosa")]


def test_a_name_that_is_not_utf8_is_an_input_error():
    with pytest.raises(InputError, match=r"`taxa` is not UTF-8 \(got 'R\\udcf6schen'\)"):
        query_of(Parameters(taxa=["R\udcf6schen"]))


def test_the_service_reads_what_a_client_sends():
    asked = Parameters(
        k=50, coverage=0.7 + 0.2, coverage_kind="macro", taxa=("Rosa", "5"), preview=True, latitude=-1e-7,
        longitude=13.4, date=date(2026, 5, 31), use_exif=True, cultivated=True, lang="pt-BR",
    )  # fmt: skip
    sent = {}
    for name, text in query_of(asked):
        sent.setdefault(name, []).append(text)
    assert set(sent) == set(Parameters.__struct_fields__)
    assert parse_parameters(sent) == msgspec.structs.replace(asked, coverage=0.9)  # not 0.8999999999999999


def test_retry_after_is_the_least_pause_and_pauses_grow():
    talk = Talk(refusal(503, "3"), refusal(429, "1"), refusal(504), ok())
    talk.run()
    assert talk.pauses == [3 + 0.5, 1 + 1.0, 0 + 2.0]
    assert [request.headers["Prefer"] for request in talk.requests] == ["wait=120", "wait=116", "wait=114", "wait=112"]


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_pauses_are_random_up_to_their_limit(share):
    talk = Talk(*[refusal(503, "1")] * 12, ok(), timeout_s=86_400, chance=lambda low, high: low + share * (high - low))
    talk.run()
    assert all(1 <= pause <= 31 for pause in talk.pauses)


def test_a_day_of_attempts_is_a_day():
    talk = Talk(refusal(503, "50"), timeout_s=86_400, chance=lambda low, high: low)
    talk.fails(ServiceRefusal)
    assert len(talk.pauses) > 1024  # powers of two grow beyond a float


def test_the_last_refusal_is_raised_when_the_time_is_over():
    talk = Talk(refusal(503, "1"), timeout_s=10)
    error = talk.fails(ServiceRefusal, "refused with 503")
    assert error.code == error.document.code == "some_code"
    assert talk.now < 10


def test_a_later_attempt_has_the_time_that_is_left_and_not_that_of_all():
    talk = Talk(refusal(503, "119"), HANGS, timeout_s=119.5, chance=lambda low, high: low)
    talk.fails(ServiceUnreachable, r"did not answer in time \(limit 119.5 s\)")


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 422, 500])
def test_a_wrong_request_is_not_sent_again(status):
    talk = Talk(refusal(status, "1"), ok())
    talk.fails(ServiceRefusal)
    assert len(talk.requests) == 1


def test_a_lost_connection_is_tried_again_for_a_while():
    lost = (httpx2.ReadError("lost"), httpx2.ConnectError(""), httpx2.DecodingError("incorrect header check"))
    assert Talk(*lost, ok()).run() == ANSWER
    talk = Talk(httpx2.ConnectError("refused"))
    talk.fails(ServiceUnreachable, r"no service answers at http://host:1/ \(refused\): check")
    assert len(talk.requests) == 7


@pytest.mark.parametrize("first", [refusal(503), httpx2.Response(502, content=b"<html>")])
@pytest.mark.parametrize("timeout_s", [5, 20, 120, 3600])
def test_an_address_that_has_answered_is_tried_to_the_end(first, timeout_s):
    talk = Talk(first, httpx2.ConnectError("refused"), timeout_s=timeout_s)
    talk.fails(ServiceUnreachable, "refused")
    assert timeout_s - 1 < talk.now < timeout_s
    assert len(talk.requests) < 20 + timeout_s / 30


@pytest.mark.parametrize("content", [b"<html>", b'{"status": "ok"}', b'"\xff"', b"[" * 100_000])
@pytest.mark.parametrize("status", [200, 404, 413])
def test_what_is_not_from_the_service_is_a_refusal(content, status):
    talk = Talk(httpx2.Response(status, content=content))
    talk.fails(ServiceRefusal, rf"http://host:1/ answered {status} \w+.*: check the address")


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_its_service_is_asked_again(status):
    assert Talk(*[httpx2.Response(status, content=b"<html>")] * 9, ok()).run() == ANSWER


def test_an_answer_is_exactly_what_the_service_sent():
    sent = msgspec.json.encode({**msgspec.to_builtins(ANSWER), "later": 1.50})
    talk = Talk(httpx2.Response(200, content=sent))
    assert talk.run_json("http://host") == sent


@pytest.mark.parametrize("error", [httpx2.UnsupportedProtocol, httpx2.LocalProtocolError])
def test_what_cannot_be_sent_is_not_tried_again_and_not_shown(error):
    talk = Talk(error("Illegal header value b'Bearer secret'"))
    assert "secret" not in str(talk.fails(ServiceUnreachable))
    assert len(talk.requests) == 1


def test_the_password_of_a_proxy_is_sent_and_not_shown():
    talk = Talk(httpx2.Response(404))
    assert "secret" not in str(talk.fails(ServiceRefusal, url="http://user:secret@host:1/"))
    assert talk.requests[0].url.password == "secret"


@pytest.mark.parametrize("url", ["http://host/plants", "http://[::1]:80/plants/"])
def test_an_address_may_have_a_path(url):
    talk = Talk(ok())
    talk.run(url)
    assert talk.requests[0].url.path == "/plants/identify"


@pytest.mark.parametrize(("location", "place"), cases(__file__, "redirects"))
def test_a_redirect_is_refused_with_the_other_address(location, place):
    talk = Talk(httpx2.Response(301, headers={"Location": location}))
    assert f"http://host:1/ redirects to {place} (301 " in str(talk.fails(ServiceRefusal))
    assert len(talk.requests) == 1
