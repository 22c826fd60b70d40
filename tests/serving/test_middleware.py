"""The layers around the routes: headers, log lines, traces and what clients may keep."""

import asyncio

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from serving.api.middleware import ObservabilityMiddleware, is_unchanged
from serving.metrics import Metrics


def answer(*, is_draining=False, headers=(), client=None):
    """Returns the headers and the log line of one response."""

    async def app(scope, receive, send):
        if client is not None:
            scope["state"]["client"] = client
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await send({"type": "http.response.body", "body": b""})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/model", "headers": [], "client": ("192.0.2.1", 4711)}
    with structlog.testing.capture_logs() as lines:
        asyncio.run(ObservabilityMiddleware(app, Metrics(), lambda: is_draining)(scope, None, send))
    [line] = lines
    return sent[0]["headers"], line


@pytest.mark.parametrize(("is_draining", "expected"), [(False, []), (True, [b"close"])])
def test_connections_are_closed_after_their_response_only_while_draining(is_draining, expected):
    headers, _ = answer(is_draining=is_draining)
    assert [value for name, value in headers if name == b"connection"] == expected


def test_duration_is_in_milliseconds(monkeypatch):
    clock = iter([100.0, 100.25])
    monkeypatch.setattr("serving.api.middleware.time.perf_counter", lambda: next(clock))
    assert answer()[1]["duration_ms"] == 250.0


@pytest.mark.parametrize("client", [None, ""])
def test_log_line_without_a_key_has_no_client(client):
    _, line = answer(client=client)
    assert "client" not in line
    assert "192.0.2.1" not in str(line)


KEPT = ["/", "/web/style.css", "/web/vendor/rapidoc/rapidoc-min.js", "/schema", "/schema/openapi.json", "/model"]
TAGS = st.text("abcdef0123456789", min_size=1).map(lambda text: f'"{text}"')
PLAIN = {"accept-encoding": "identity"}


@pytest.mark.parametrize("address", KEPT)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_the_client_has_is_not_sent_again(client, address, method):
    first = client.get(address)
    assert first.headers["cache-control"] == "no-cache"
    again = client.request(method, address, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["cache-control"] == "no-cache"
    assert "content-length" not in again.headers
    assert client.request(method, address, headers={"if-none-match": '"other"'}).status_code == 200


def test_file_that_has_not_changed_since_a_time_is_not_sent_again(client):
    modified = client.get("/web/style.css").headers["last-modified"]
    assert client.get("/web/style.css", headers={"if-modified-since": modified}).status_code == 304
    earlier = {"if-modified-since": "Sun, 06 Nov 1994 08:49:37 GMT"}
    assert client.get("/web/style.css", headers=earlier).status_code == 200
    both = {"if-modified-since": modified, "if-none-match": '"other"'}
    assert client.get("/web/style.css", headers=both).status_code == 200


@pytest.mark.parametrize("address", ["/health/live", "/metrics", "/species?q=rosa", "/nowhere", "/web/nowhere"])
def test_everything_else_is_not_kept(client, address):
    response = client.get(address, headers={"if-none-match": "*"})
    assert response.status_code in {200, 404}
    assert response.headers["cache-control"] == "no-store"


@given(st.lists(TAGS, min_size=1), st.sampled_from(["", "W/"]), st.sampled_from([", ", ",", " ,"]), TAGS)
def test_tags_are_compared_without_their_weakness(known, weak, separator, other):
    sent = [(b"If-None-Match", separator.join(known).encode())]
    for tag in known:
        assert is_unchanged(sent, [(b"ETag", f"{weak}{tag}".encode())])
    assert is_unchanged(sent, [(b"ETag", other.encode())]) == (other in known)
    assert not is_unchanged(sent, [])


@given(st.one_of(st.text(), st.sampled_from(["Sun, 06 Nov 1994 08:49:37", "0", ""])))
@example(f"Sun, 06 Nov 1994 08:49:37 +{10**20}")
def test_malformed_date_is_ignored(text):
    modified = [(b"last-modified", b"Sun, 06 Nov 1994 08:49:37 GMT")]
    assert not is_unchanged([(b"if-modified-since", text.encode())], modified)


# ---- compression


@pytest.mark.parametrize("address", [*KEPT[:3], *KEPT[4:], "/metrics"])
def test_long_text_is_compressed_for_clients_that_can_read_it(client, address):
    plain, packed = client.get(address, headers=PLAIN), client.get(address, headers={"accept-encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < 0.7 * len(plain.content)
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert plain.headers.get("etag") == packed.headers.get("etag")
    if address != "/metrics":
        assert packed.content == plain.content
