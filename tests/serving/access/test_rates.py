"""Rate limits by token bucket."""

import math
import time

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


def test_burst_is_allowed_and_the_next_request_gets_a_retry_time(clock):
    limiter = RateLimiter(6, burst=3, clock=clock)
    assert [wait_s(limiter) for _ in range(4)] == [None, None, None, 10]


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


def test_bucket_never_holds_more_than_the_burst(clock):
    limiter = RateLimiter(60, burst=3, clock=clock)
    clock.now += 1e6
    assert [wait_s(limiter) for _ in range(4)] == [None, None, None, 1]


def test_retry_after_is_at_least_a_second(clock):
    limiter = RateLimiter(60_000, burst=1, clock=clock)
    limiter.acquire("a")
    assert wait_s(limiter) == 1


def test_clients_do_not_share_a_bucket(clock):
    limiter = RateLimiter(1, burst=1, clock=clock)
    assert [wait_s(limiter, client) for client in "aabb"] == [None, 60, None, 60]


def test_full_buckets_are_dropped(clock):
    limiter = RateLimiter(60, burst=2, clock=clock)
    for number in range(1_000):
        limiter.acquire(str(number))
    clock.now += 1.0
    limiter.acquire("last")
    assert len(limiter._full_at) == 1


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


def test_cost_of_a_request_does_not_grow_with_the_number_of_clients():
    def seconds_each(limiter, start):
        began = time.process_time()
        for number in range(start, start + 5_000):
            limiter.acquire(str(number))
        return time.process_time() - began

    few, many = RateLimiter(1, burst=1), RateLimiter(1, burst=1)
    for number in range(10_000):
        many.acquire(str(number))
    assert min(seconds_each(many, start) for start in (10_000, 20_000, 30_000)) < 10 * seconds_each(few, 0)


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


def test_neighboring_networks_are_two_clients():
    assert client_network("2001:db8:1:2::1") != client_network("2001:db8:1:3::1")


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
