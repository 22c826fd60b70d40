"""What the operator changes or reads while the service runs: API keys, metrics on a port of their own, rates."""

import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from unittest.mock import Mock

import httpx2
import pytest

from models.errors import InputError
from serving.__main__ import _listen, _serve_metrics
from serving.access.control import AccessControl
from serving.access.keys import make_key
from serving.errors import RateLimited
from serving.metrics import Metrics
from tests.serving.raw_http import receive_all
from tests.serving.tiny import FakeNetwork, assert_problem, post
from tests.waiting import wait_until

ADMIN_SECRET, ADMIN = make_key("operator", is_admin=True)
OLD_SECRET, OLD = make_key("old")


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def statuses(client, *secrets):
    return [client.get("/species", headers=bearer(secret)).status_code for secret in secrets]


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(f"{ADMIN.line}\n{OLD.line}\n")
    return path


def test_a_key_taken_out_is_revoked_even_if_it_was_the_only_one_and_the_bundle_is_refused(
    start, keys, bundle_folder, tmp_path
):
    live = tmp_path / "live"
    shutil.copytree(bundle_folder, live)
    client = start(api_keys_file=keys, bundle=live)
    (live / "bundle.json").write_text("damaged")
    keys.write_text(f"{ADMIN.line}\n")
    assert_problem(client.post("/admin/reload", headers=bearer(ADMIN_SECRET)), 409, "reload_refused")
    assert statuses(client, OLD_SECRET, ADMIN_SECRET) == [401, 200]
    keys.write_text("# nobody\n")
    assert_problem(client.post("/admin/reload", headers=bearer(ADMIN_SECRET)), 409, "reload_refused")
    assert statuses(client, OLD_SECRET, ADMIN_SECRET, "") == [401, 401, 401]


def test_a_key_taken_out_is_revoked_while_an_earlier_reload_hangs(start, keys):
    network = FakeNetwork()
    client = start(api_keys_file=keys, session=network)
    network.hold()
    with ThreadPoolExecutor(2) as pool:
        reloads = [pool.submit(client.post, "/admin/reload", headers=bearer(ADMIN_SECRET))]
        assert network.entered.wait(60)
        keys.write_text(f"{ADMIN.line}\n")
        reloads.append(pool.submit(client.post, "/admin/reload", headers=bearer(ADMIN_SECRET)))
        wait_until(lambda: statuses(client, OLD_SECRET) == [401])
        network.free.set()
        assert [reload.result().status_code for reload in reloads] == [200, 200]


@pytest.mark.parametrize("content", ["no key", None, "pipe"])
def test_keys_that_cannot_be_used_refuse_the_reload_and_the_old_ones_stay(start, keys, content):
    client = start(api_keys_file=keys)
    if content != "no key":
        keys.unlink()
    if content == "pipe":
        os.mkfifo(keys)
    if content == "no key":
        keys.write_text(content)
    assert_problem(client.post("/admin/reload", headers=bearer(ADMIN_SECRET)), 409, "reload_refused")
    assert statuses(client, OLD_SECRET, "", make_key("new")[0]) == [200, 401, 401]


def test_metrics_with_a_port_of_their_own_are_not_on_the_public_one(start):
    assert_problem(start(metrics="0").get("/metrics"), 404, "not_found")


def test_metrics_are_served_on_their_own_port():
    metrics = Metrics()
    metrics.refusals.labels("overloaded").inc()
    response = httpx2.get(_serve_metrics(metrics, "127.0.0.1", 0))
    assert response.headers["content-type"] == Metrics.media_type
    assert 'botanify_refusals_total{code="overloaded"} 1.0' in response.text


def test_half_requests_to_the_metrics_port_take_no_threads_and_end():
    url = httpx2.URL(_serve_metrics(Metrics(), "127.0.0.1", 0, 1.5))
    num_threads = threading.active_count()
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((url.host, url.port), timeout=20)) for _ in range(50)]
        for connection in idle:
            with suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        with pytest.raises(httpx2.HTTPError):  # there are too many connections
            httpx2.get(url)
        assert threading.active_count() == num_threads
        for connection in idle:
            assert receive_all(connection) == b""
        assert httpx2.get(url).status_code == 200


def test_text_of_the_metrics_is_made_once_a_second(start, monkeypatch):
    made, text = [], Metrics.text
    monkeypatch.setattr(Metrics, "text", lambda metrics: made.append(1) or text(metrics))
    client = start()
    begun_at = time.monotonic()
    assert {client.get("/metrics").status_code for _ in range(40)} == {200}
    assert len(made) <= 1 + time.monotonic() - begun_at
    time.sleep(1)
    assert 'route="/metrics"' in client.get("/metrics").text


def test_port_on_all_ipv6_addresses_accepts_ipv4():
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with _listen("::", 0, "--port") as listening:
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), timeout=10).close()


def test_the_body_of_an_answer_does_not_wait_until_the_client_acknowledges_its_head():
    """With asyncio's own loop, each answer on a kept connection waited for a delayed acknowledgement."""
    with (
        _listen("127.0.0.1", 0, "--port") as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_metrics_port_in_use_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="--metrics"):
        _serve_metrics(Metrics(), "127.0.0.1", taken.getsockname()[1])


@pytest.mark.usefixtures("still_clock")
def test_responses_say_what_the_client_may_still_send(start):
    client = start(rate_per_minute=6, rate_burst=3)
    answers = [post(client) for _ in range(2)]
    answers += [client.get("/species?limit=0"), client.get("/species")]
    assert [answer.status_code for answer in answers] == [200, 200, 422, 429]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"client";q=3;w=30'}
    assert [answer.headers["ratelimit"].partition(";t=")[0] for answer in answers] == [
        f'"client";r={left}' for left in (2, 1, 0, 0)
    ]
    assert "ratelimit" not in client.get("/model").headers


def test_a_key_may_ask_about_so_many_plants_a_day(start, keys, monkeypatch):
    clock = Mock(return_value=86_340.0)
    monkeypatch.setattr("time.time", clock)
    keys.write_text(f"{ADMIN.line} 2/day\n{OLD.line}\n")
    client = start(api_keys_file=keys)
    secrets = (ADMIN_SECRET, ADMIN_SECRET, OLD_SECRET, OLD_SECRET, OLD_SECRET, ADMIN_SECRET)
    *answered, refused = (post(client, headers=bearer(secret)) for secret in secrets)
    assert {each.status_code for each in answered} == {200}
    assert statuses(client, ADMIN_SECRET) == [200], "the page asks for plants as they are typed"
    assert "at most 2 a day): try again after midnight" in assert_problem(refused, 429, "rate_limited")["detail"]
    assert refused.headers["retry-after"] == "60"
    clock.return_value += 60
    assert post(client, headers=bearer(ADMIN_SECRET)).status_code == 200


OF_CLIENTS = [
    "GET /species", "GET /species/0", "POST /identify", "POST /admin/reload", "POST /identify/0/correction",
    "DELETE /corrections/0", "POST /v2/identify/all", "GET /v2/identify/all", "GET /v2/languages", "GET /v2/projects",
    "GET /v2/species",
]  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    ["GET /metrics", "GET /model", "GET /", "GET /web/style.css", "GET /schema", "GET /nowhere", *OF_CLIENTS[4:7]],
)
def test_what_needs_no_key_has_fifty_times_the_rate_by_address_and_health_has_none(start, keys, asked):
    client = start(
        api_keys_file=keys, rate_per_minute=0.01, rate_burst=1
    )  # without corrections and Pl@ntNet's interface
    assert {client.request(*asked.split()).status_code for _ in range(50)} <= {200, 404, 405}
    assert_problem(client.request(*asked.split()), 429, "rate_limited")
    assert {client.get(health).status_code for health in ("/health/live", "/health/ready") * 9} == {200}
    assert statuses(client, OLD_SECRET, OLD_SECRET) == [200, 429]


def test_what_counts_for_a_client_never_counts_for_its_address(start, tmp_path, monkeypatch):
    client = start(corrections=tmp_path, plantnet_api=True)
    refusal = Mock(side_effect=RateLimited("the address sends too much", retry_after_s=7))
    monkeypatch.setattr(AccessControl, "limit_address", refusal)
    assert 429 not in {client.request(*asked.split()).status_code for asked in OF_CLIENTS}
    assert client.get("/model").status_code == 429
