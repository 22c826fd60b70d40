"""Token buckets: how often one client may ask."""

import time

import pytest

from serving.access.rates import Rates, network_of
from serving.errors import RateLimited


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def wait_s(rates, client="a"):
    """What the client is told to wait, or nothing if it is let in."""
    try:
        rates.take(client)
    except RateLimited as error:
        return error.retry_after_s
    return None


def test_burst_is_let_in_and_the_next_is_told_when_to_come(clock):
    rates = Rates(6, burst=3, clock=clock)
    assert [wait_s(rates) for _ in range(4)] == [None, None, None, 10]


def test_whoever_waits_as_long_as_told_is_let_in(clock):
    for rate in (0.7, 7, 59, 60, 61, 1_000, 12_345.6):
        rates = Rates(rate, burst=2, clock=clock)
        for _ in range(50):
            told = wait_s(rates)
            if told is not None:
                clock.now += told
                assert wait_s(rates) is None


def test_rate_is_kept_over_a_long_time(clock):
    rates = Rates(30, burst=5, clock=clock)
    start = clock.now
    let_in = 0
    while clock.now < start + 600:
        let_in += wait_s(rates) is None
        clock.now += 0.1
    assert 300 <= let_in <= 306  # 30 a minute for ten minutes, and the burst


def test_refusals_cost_nothing(clock):
    rates = Rates(60, burst=1, clock=clock)
    rates.take("a")
    for _ in range(1_000):
        assert wait_s(rates) == 1
    clock.now += 1
    assert wait_s(rates) is None


def test_bucket_never_holds_more_than_the_burst(clock):
    rates = Rates(60, burst=3, clock=clock)
    clock.now += 1e6
    assert [wait_s(rates) for _ in range(4)] == [None, None, None, 1]


def test_retry_after_is_at_least_a_second(clock):
    rates = Rates(60_000, burst=1, clock=clock)
    rates.take("a")
    assert wait_s(rates) == 1


def test_clients_do_not_share_a_bucket(clock):
    rates = Rates(1, burst=1, clock=clock)
    assert [wait_s(rates, client) for client in "aabb"] == [None, 60, None, 60]


def test_buckets_that_are_full_again_take_no_memory(clock):
    rates = Rates(60, burst=2, clock=clock)
    for number in range(1_000):
        rates.take(str(number))
    clock.now += 1.0
    rates.take("last")
    assert len(rates) == 1


def test_memory_is_bounded_and_the_busy_are_remembered(clock):
    rates = Rates(1, burst=2, clock=clock)
    rates.take("idle")
    for number in range(30_000):
        if number % 1_000 == 0:
            wait_s(rates, "busy")
        assert wait_s(rates, str(number)) is None
    assert len(rates) <= 10_000
    assert wait_s(rates, "busy") is not None
    assert wait_s(rates, "idle") is None


def test_request_costs_the_same_however_many_clients_there_are():
    def seconds_each(rates, start):
        began = time.process_time()
        for number in range(start, start + 5_000):
            rates.take(str(number))
        return time.process_time() - began

    few, many = Rates(1, burst=1), Rates(1, burst=1)
    for number in range(10_000):
        many.take(str(number))
    assert min(seconds_each(many, start) for start in (10_000, 20_000, 30_000)) < 10 * seconds_each(few, 0)


# ---- who counts as one client


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
def test_client_is_an_address_or_the_network_of_a_customer(address, client):
    assert network_of(address) == client


def test_neighboring_networks_are_two_clients():
    assert network_of("2001:db8:1:2::1") != network_of("2001:db8:1:3::1")
