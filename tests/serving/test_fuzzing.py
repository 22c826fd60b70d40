"""Fuzzes the real program: no 500, no crash, and ready afterwards."""

import random
import socket
from collections import Counter

import httpx2
import pytest

from tests.serving.program import service
from tests.serving.raw_http import receive_all
from tests.serving.tiny import BLUE, FORM, draw, encode, form, images, jpeg, part

_FORMATS = ("JPEG", "PNG", "WEBP", "HEIF", "AVIF")
ANSWERS = {200, 400, 401, 404, 405, 408, 413, 415, 422, 431, 503}


@pytest.fixture(scope="module")
def running(bundle_folder):
    with service(bundle_folder) as running:
        yield running
        assert running.process.poll() is None
        assert running.stop() == 0
    assert not [line for line in running.lines if "Traceback" in line or '"internal"' in line], running.lines[-20:]


def mutated(data, rng):
    """Returns the bytes with some flipped, removed, repeated or cut off."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 0x7F, 0xFF, ord("-"), ord("\r")))
            case 2:
                del data[at : at + rng.randint(1, 40)]
            case 3:
                data[at:at] = data[at : at + rng.randint(1, 40)]
            case 4 if rng.random() < 0.2:
                del data[at:]
        if not data:
            break
    return bytes(data)


def fuzz(running, seed, num_requests):
    """Sends mutated requests; returns how often each status came back."""
    rng = random.Random(seed)
    pictures = [encode(draw(BLUE, (40, 30)), name) for name in _FORMATS]
    with running.client() as client:
        return Counter(send_mutated(client, running.address(), rng, rng.choice(pictures)) for _ in range(num_requests))


def send_mutated(client, address, rng, picture):
    """Sends a mutated picture, form or raw request; returns the status of the response."""
    match rng.randrange(3):
        case 0:
            body, headers = picture, {"content-type": "image/jpeg"}
        case 1:
            body, headers = form(part("image", picture, filename="a.jpg"), part("k", b"3")), FORM
        case _:
            return raw(address, mutated(request(picture), rng))
    return client.post("/identify", content=mutated(body, rng), headers=headers).status_code


def request(picture):
    head = "POST /identify?k=3 HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(picture)}\r\n\r\n".encode() + picture


def raw(address, data, source=None):
    """Sends raw bytes; returns the status of the response, or 0 if the connection was closed."""
    with socket.create_connection(address, source_address=source) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            _, _, answer = receive_all(connection).rpartition(b"HTTP/1.1 100 Continue\r\n\r\n")
        except (ConnectionError, BrokenPipeError):
            return 0
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def assert_works(running, statuses):
    assert set(statuses) <= ANSWERS | {0}, statuses
    assert statuses[200] > 0, statuses
    assert statuses[422] > 0, statuses
    assert httpx2.get(f"{running.url}/health/ready").status_code == 200
    assert httpx2.post(f"{running.url}/identify", files=images(jpeg())).status_code == 200


def test_service_survives_a_hundred_mutated_requests(running):
    assert_works(running, fuzz(running, seed=1, num_requests=100))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_service_survives_thousands_of_mutated_requests(running, seed):
    assert_works(running, fuzz(running, seed, num_requests=2_000))
