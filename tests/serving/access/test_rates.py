"""Rate limits by token bucket."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.access.control import RateLimiter, client_network
from serving.errors import RateLimited


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def wait_s(limiter, client="a"):
    """Returns the Retry-After seconds of the refusal, or None if the request is allowed."""
    try:
        limiter.acquire(client)
    except RateLimited as error:
        return error.retry_after_s
    return None


def test_request_after_the_retry_time_is_allowed(clock):
    for rate in (0.7, 7, 59, 60, 61, 1_000, 12_345.6):
        limiter = RateLimiter(rate, burst=2, clock=clock)
        for _ in range(50):
            retry_after_s = wait_s(limiter)
            if retry_after_s is not None:
                clock.now += retry_after_s
                assert wait_s(limiter) is None


def test_average_rate_is_enforced(clock):
    limiter = RateLimiter(30, burst=5, clock=clock)
    start = clock.now
    allowed = 0
    while clock.now < start + 600:
        allowed += wait_s(limiter) is None
        clock.now += 0.1
    assert 300 <= allowed <= 306  # 30 a minute for ten minutes, plus the burst


def test_refused_requests_take_no_tokens(clock):
    limiter = RateLimiter(60, burst=1, clock=clock)
    limiter.acquire("a")
    for _ in range(1_000):
        assert wait_s(limiter) == 1
    clock.now += 1
    assert wait_s(limiter) is None


def test_number_of_buckets_is_bounded_and_busy_clients_are_kept(clock):
    limiter = RateLimiter(1, burst=2, clock=clock)
    limiter.acquire("idle")
    for number in range(30_000):
        if number % 1_000 == 0:
            wait_s(limiter, "busy")
        assert wait_s(limiter, str(number)) is None
    assert len(limiter._full_at) <= 10_000
    assert wait_s(limiter, "busy") is not None
    assert wait_s(limiter, "idle") is None


# ---- identity of a client


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, "unknown"),
        ("", "unknown"),
        ("unknown", "unknown"),
        ("192.0.2.7:80", "unknown"),
        ("x" * 60_000, "unknown"),
    ],
)
def test_client_is_an_ipv4_address_or_an_ipv6_network(address, client):
    assert client_network(address) == client


# ---- headers


def parameters(headers):
    """Returns the parameters of RateLimit-Policy and RateLimit, such as {"q": 20, "w": 60, "r": 12, "t": 3}."""
    found = {}
    for value in headers.values():
        name, *rest = value.split(";")
        assert name == '"client"'
        found |= {key: int(number) for key, _, number in (each.partition("=") for each in rest)}
    return found


@given(rate=st.integers(1, 6000), burst=st.integers(1, 30), num_taken=st.integers(0, 40), pause_s=st.floats(0, 100))
@example(rate=29, burst=29, num_taken=0, pause_s=0.0)  # 29 / (29 / 60) is a little over 60
def test_headers_say_how_many_requests_are_left_and_when_the_next_one_comes(rate, burst, num_taken, pause_s):
    clock = [1000.0]
    limiter = RateLimiter(rate, burst, clock=lambda: clock[0])

    def ask():
        try:
            return True, parameters(limiter.acquire("a"))
        except RateLimited as error:
            return False, parameters(error.quota)

    for _ in range(num_taken):
        ask()
    clock[0] += pause_s
    _, said = ask()
    assert (said["q"], said["w"]) == (burst, math.ceil(burst * 60 / rate))
    assert [ask()[0] for _ in range(said["r"] + 1)] == [True] * said["r"] + [False]
    clock[0] += ask()[1]["t"]
    assert ask()[0]
