"""One client that tries to take everything, beside another, over real connections."""

import re
import socket
from contextlib import ExitStack

import pytest

from tests.serving.program import service
from tests.serving.raw_http import receive_all
from tests.serving.tiny import jpeg
from tests.waiting import wait_until

LARGE = 20_000_000


@pytest.fixture(scope="module")
def address(bundle_folder):
    # With a smaller share the clients of one test would count as there in the next.
    flags = ("--trusted-proxies", "127.0.0.1", "--max-requests", "2", "--client-share", "1")
    with service(bundle_folder, *flags, "--num-decoders", "1", "--num-runs", "1") as running:
        yield running.address()


@pytest.fixture
def send(address):
    """Sends a request from a forwarded address, declared as longer than its body."""
    with ExitStack() as stack:

        def send_one(client, body, num_bytes):
            connection = stack.enter_context(socket.create_connection(address))
            head = f"POST /identify HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n"
            form = f"Content-Type: image/jpeg\r\nContent-Length: {num_bytes}\r\n\r\n"
            connection.sendall((head + form).encode() + body)
            return connection

        yield send_one


def status(connection):
    return int(receive_all(connection).split(b" ", 2)[1])


def wait_until_admitted(address, count):
    def are_admitted():
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            found = re.search(rb"^botanify_requests_admitted (\S+)", receive_all(connection), re.MULTILINE)
        return float(found[1]) == count

    wait_until(are_admitted)


@pytest.mark.parametrize(
    ("attacker", "honest", "body"),
    [("192.0.2.1", "192.0.2.2", b""), ("2001:db8::1", "2001:db8:0:1::1", b"x" * 50_000)],
    ids=["IPv4, heads", "IPv6, uploads"],
)
def test_client_that_holds_every_request_gives_one_up_for_a_client_that_the_proxy_tells_apart(
    address, send, attacker, honest, body
):
    wait_until_admitted(address, 0)
    held = []
    for number in range(2):  # each waits for metrics, whose text is made once a second
        held.append(send(attacker, body, LARGE))
        wait_until_admitted(address, number + 1)
    assert status(send(attacker, body, LARGE)) == 503
    picture = jpeg()
    assert status(send(honest, picture, len(picture))) == 200
    assert status(held[-1]) == 503
    for connection in held:
        connection.close()
