"""Cross-origin requests: which origins are allowed, and which headers their pages can read."""

import asyncio

import pytest
from litestar import Litestar, get, post
from litestar.params import FromQuery
from litestar.testing import TestClient

from models.errors import InputError
from serving.access.control import AccessControl, RateLimiter
from serving.access.origins import cors_config
from serving.api.middleware import PUBLIC, AddressLimit, ObservabilityMiddleware, refusing_preflights
from serving.errors import Overloaded, RateLimited, Unauthorized
from serving.metrics import Metrics
from tests.make import from_table
from tests.serving.tiny import assert_problem

GARDEN, OTHER = "https://garden.example", "https://other.example"
PROBLEMS = {
    401: Unauthorized("no key"),
    429: RateLimited("often", retry_after_s=7),
    503: Overloaded("full", retry_after_s=2),
}


@get("/model", sync_to_thread=False, opt=PUBLIC)
def model() -> str:
    return "a model"


@post("/identify", sync_to_thread=False)
def identify(status: FromQuery[int]) -> None:
    raise PROBLEMS.get(status) or ZeroDivisionError


def app_with_layers(access):
    limit = AddressLimit(access)
    app = Litestar(
        [model, identify],
        cors_config=cors_config([GARDEN, "http://localhost:3000"], has_keys=True),
        guards=[limit.guard],
        exception_handlers={Exception: limit.respond},
        openapi_config=None,
        logging_config=None,
    )
    layers = refusing_preflights(app, app.cors_config)
    return ObservabilityMiddleware(layers, Metrics(), cors=app.cors_config)


@pytest.fixture
def client():
    with TestClient(app_with_layers(AccessControl()), raise_server_exceptions=False) as client:
        yield client


def preflight(client, origin, method="POST", headers="authorization,x-api-key,content-type,prefer,x-request-id"):
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return client.options("/identify", headers={"Origin": origin, **asked})


@pytest.mark.parametrize("origin", [GARDEN, "http://localhost:3000"])
def test_preflight_of_an_allowed_origin_needs_no_key(client, origin):
    answer = preflight(client, origin)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-max-age"] == "7200"
    assert set(answer.headers["access-control-allow-methods"].split(", ")) == {"GET", "HEAD", "POST", "DELETE"}
    assert "access-control-allow-credentials" not in answer.headers


@from_table
def test_other_preflights_are_refused(client, origin, method, headers):
    answer = preflight(client, origin, method, headers)
    assert_problem(answer, 400, "bad_request")
    assert answer.headers["vary"] == "Accept-Encoding, Origin"
    assert "access-control-allow-origin" not in answer.headers


@from_table
def test_allowed_page_can_read_every_response_and_its_headers(client, method, address, status):
    answer = client.request(method, address, headers={"Origin": GARDEN})
    assert answer.status_code == status
    assert_readable(answer.headers)


def assert_readable(headers):
    assert headers["access-control-allow-origin"] == GARDEN
    assert headers["vary"] == "Accept-Encoding, Origin"
    exposed = set(headers["access-control-expose-headers"].split(", "))
    assert exposed == {"X-Request-ID", "Retry-After", "Preference-Applied", "RateLimit", "RateLimit-Policy"}


def test_allowed_page_can_read_that_its_address_asks_too_often():
    with TestClient(app_with_layers(AccessControl(rate_limiter=RateLimiter(1, 1, clock=lambda: 0.0)))) as client:
        for _ in range(50):
            assert client.get("/model").status_code == 200
        refused = client.get("/model", headers={"Origin": GARDEN})
        assert_problem(refused, 429, "rate_limited")
        assert refused.headers["retry-after"] == "2"
        assert_readable(refused.headers)
        assert "access-control-allow-origin" not in client.get("/model", headers={"Origin": OTHER}).headers


def test_allowed_page_can_read_that_the_shutdown_ended_its_request():
    async def cancelled(scope, receive, send):
        raise asyncio.CancelledError

    sent = []

    async def send(message):
        sent.append(message)

    config = cors_config([GARDEN], has_keys=True)
    scope = {"type": "http", "method": "GET", "path": "/model", "headers": [(b"origin", GARDEN.encode())]}
    asyncio.run(ObservabilityMiddleware(cancelled, Metrics(), cors=config)(scope, None, send))
    assert sent[0]["status"] == 503
    assert_readable({name.decode(): value.decode() for name, value in sent[0]["headers"]})


@pytest.mark.parametrize("address", ["/model", "/nowhere"])
@pytest.mark.parametrize("headers", [{"Origin": OTHER}, {}])
def test_page_of_another_origin_cannot_read_a_response_and_a_cache_does_not_mix_them_up(client, address, headers):
    answer = client.get(address, headers=headers)
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Accept-Encoding, Origin"


def test_wildcard_origin_is_accepted_only_without_keys():
    assert cors_config(["*"], has_keys=False).is_allow_all_origins
    with pytest.raises(InputError, match="API keys"):
        cors_config(["*"], has_keys=True)


@from_table
def test_invalid_origin_is_refused(origin):
    with pytest.raises(InputError, match="--cors-origins"):
        cors_config([GARDEN, origin], has_keys=True)
