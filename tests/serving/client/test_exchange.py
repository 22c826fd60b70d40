"""An exchange tries again where that helps, and as late as the service asks for."""

import asyncio
import json
import re
from datetime import date
from pathlib import Path
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


ROWS = json.loads(Path(__file__).with_suffix(".json").read_text())
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
        client = AsyncClient(url, api_key="key", timeout_s=self.timeout_s)
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
    assert (request.headers["Prefer"], request.headers["Authorization"]) == ("wait=120", "Bearer key")
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


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_pauses_are_random_up_to_their_limit(share):
    talk = Talk(*[refusal(503, "1")] * 12, ok(), timeout_s=86_400, chance=lambda low, high: low + share * (high - low))
    talk.run()
    assert all(1 <= pause <= 31 for pause in talk.pauses)


def test_an_answer_is_exactly_what_the_service_sent():
    sent = msgspec.json.encode({**msgspec.to_builtins(ANSWER), "later": 1.50})
    talk = Talk(httpx2.Response(200, content=sent))
    assert talk.run_json("http://host") == sent


@pytest.mark.parametrize("path", ["", "/plants", "/plants/"])
def test_the_path_and_the_password_of_a_proxy_are_sent_and_the_password_is_not_shown(path):
    talk = Talk(httpx2.Response(404))
    assert "secret" not in str(talk.fails(ServiceRefusal, url=f"http://user:secret@host:1{path}"))
    assert talk.requests[0].url.password == "secret"
    assert talk.requests[0].url.path == f"{path.rstrip('/')}/identify"


@pytest.mark.parametrize(("location", "place"), cases(__file__, "redirects"))
def test_a_redirect_is_refused_with_the_other_address(location, place):
    talk = Talk(httpx2.Response(301, headers={"Location": location}))
    assert f"http://host:1/ redirects to {place} (301 " in str(talk.fails(ServiceRefusal))
    assert len(talk.requests) == 1


MADE = {
    "ok": ok,
    "lost": lambda: httpx2.ReadError("lost"),
    "refused": lambda: httpx2.ConnectError("refused"),
    "packed": lambda: httpx2.DecodingError("incorrect header check"),
    "no protocol": lambda: httpx2.UnsupportedProtocol("Illegal header value b'Bearer secret'"),
    "no header": lambda: httpx2.LocalProtocolError("Illegal header value b'Bearer secret'"),
    "hangs": lambda: HANGS,
}


def made(outcome):
    """An outcome of a table: a name, a status with Retry-After, or a status with what a proxy wrote."""
    if isinstance(outcome, str):
        return MADE[outcome]()
    status, more = outcome
    return refusal(status, more) if more is None or more.isdigit() else httpx2.Response(status, content=more.encode())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["fact"])
def test_an_exchange_goes_as_stored(row):
    """The last outcome goes on; a pause is random up to its limit, of which it takes the share."""
    share = row.get("share", 1)
    talk = Talk(*map(made, row["outcomes"]), timeout_s=row.get("timeout_s", 120), chance=lambda low, high: share * high)
    if "says" in row:
        error = talk.fails(ServiceUnreachable if row["unreachable"] else ServiceRefusal)
        assert re.search(row["says"], str(error))
        assert row["unreachable"] or error.code == error.document.code
        assert "secret" not in str(error)
    else:
        assert talk.run() == ANSWER
    least, most = row["requests"]
    assert least <= len(talk.requests) <= most
    if "pauses" in row:
        assert talk.pauses == row["pauses"]
        assert [request.headers["Prefer"] for request in talk.requests] == row["prefer"]
    assert talk.now <= row.get("timeout_s", 120)
    assert talk.now >= row.get("lasts_s", 0)
