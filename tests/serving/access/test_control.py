"""Who may send a request, and how many."""

import math
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from litestar.datastructures import Headers

from models.errors import InputError
from serving.access.control import AccessControl, Client, RateLimiter, client_network
from serving.access.keys import ApiKeys, make_key
from serving.errors import RateLimited, Unauthorized
from tests.make import from_table


@pytest.fixture
def clock():
    return Mock(return_value=1_000_000.0)


def wait_s(limiter, client="a"):
    """Returns the Retry-After seconds of the refusal, or None if the request is allowed."""
    try:
        limiter.acquire(client)
    except RateLimited as error:
        return error.retry_after_s
    return None


def test_average_rate_is_enforced(clock):
    limiter = RateLimiter(30, burst=5, clock=clock)
    start = clock.return_value
    allowed = 0
    while clock.return_value < start + 600:
        allowed += wait_s(limiter) is None
        clock.return_value += 0.1
    assert 300 <= allowed <= 306  # 30 a minute for ten minutes, plus the burst


def test_refused_requests_take_no_tokens(clock):
    limiter = RateLimiter(60, burst=1, clock=clock)
    limiter.acquire("a")
    for _ in range(1_000):
        assert wait_s(limiter) == 1
    clock.return_value += 1
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


@from_table
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


SECRET, KEY = make_key("phone")
ADMIN_SECRET, ADMIN = make_key("gardener", is_admin=True)
OTHER_SECRET, _ = make_key("stranger")
HERE, THERE = "192.0.2.1", "192.0.2.2"


def headers(*pairs):
    return Headers([(name.lower().encode(), value.encode("latin-1")) for name, value in pairs])


NO_KEY = headers()


def bearer(secret):
    return headers(("Authorization", f"Bearer {secret}"))


def access_control(*keys, burst=None):
    return AccessControl(ApiKeys(keys) if keys else None, burst and RateLimiter(1, burst, clock=lambda: 0.0))


def ask(control, sent=NO_KEY, address=HERE):
    """Returns the client of a request that is counted for its rate."""
    client = control.authorize(sent, address)
    control.limit(client.identity)
    return client


def refused(control, sent, *errors, address=HERE):
    """Says why a request is refused for its key."""
    with pytest.raises(errors or Unauthorized) as caught:
        control.authorize(sent, address)
    return str(caught.value)


def spelled(sent):
    """Headers as a table has them."""
    secrets = {"secret": SECRET, "cut": SECRET[:-1], "other": OTHER_SECRET, "hash": KEY.sha256}
    return headers(*((name, value.format(**secrets)) for name, value in sent))


def test_no_reload_opens_a_service_with_keys_nor_closes_one_without():
    for control, keys in ((access_control(KEY), None), (access_control(), ApiKeys([KEY]))):
        with pytest.raises(InputError, match="restart it to change that"):
            control.replace_keys(keys)
        assert control.requires_key == (keys is None)


@from_table
def test_valid_key_is_authorized(sent):
    control = access_control(ADMIN, KEY)
    assert control.authorize(spelled(sent), HERE) == Client("phone", is_admin=False, identity="key phone")
    assert control.requires_key


@from_table
def test_invalid_credentials_are_refused_and_not_shown(sent):
    told = refused(access_control(KEY), spelled(sent))
    assert "Authorization: Bearer KEY" in told
    assert SECRET not in told
    assert OTHER_SECRET not in told


# ---- rates


def test_without_keys_each_address_has_its_own_rate():
    control = access_control(burst=2)
    for _ in range(2):
        ask(control)
    with pytest.raises(RateLimited, match="60 seconds"):
        ask(control)
    ask(control, address=THERE)


def test_ipv6_addresses_of_one_network_share_a_rate():
    control = access_control(burst=1)
    ask(control, address="2001:db8::1")
    with pytest.raises(RateLimited):
        ask(control, address="2001:db8::2")


def test_key_has_one_rate_across_addresses():
    control = access_control(KEY, ADMIN, burst=2)
    for address in (HERE, THERE):
        ask(control, bearer(SECRET), address)
    with pytest.raises(RateLimited):
        ask(control, bearer(SECRET), "192.0.2.3")
    ask(control, bearer(ADMIN_SECRET))


def test_failed_attempts_are_limited_by_address():
    control = access_control(KEY, burst=2)
    for _ in range(2):
        refused(control, bearer(OTHER_SECRET))
    for sent in (bearer(OTHER_SECRET), headers()):
        refused(control, sent, RateLimited)
    refused(control, bearer(OTHER_SECRET), address=THERE)


def test_failed_attempts_do_not_block_a_valid_key_at_the_same_address():
    control = access_control(KEY, burst=1)
    for _ in range(5):
        refused(control, bearer(OTHER_SECRET), Unauthorized, RateLimited)
    assert ask(control, bearer(SECRET)).name == "phone"


def test_key_named_like_an_address_has_its_own_rate():
    secret, key = make_key(HERE)
    control = access_control(key, burst=1)
    refused(control, headers())
    assert ask(control, bearer(secret)).name == HERE


# ---- admin calls


@pytest.mark.parametrize("sent", [headers(), bearer(OTHER_SECRET), bearer(SECRET)])
def test_admin_calls_require_an_admin_key(sent):
    with pytest.raises(Unauthorized):
        access_control(KEY, ADMIN).authorize_admin(sent, HERE)


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_refusal_without_any_admin_key_tells_how_to_make_one(keys):
    with pytest.raises(Unauthorized, match=r"python -m serving\.access\.keys NAME --admin"):
        access_control(*keys).authorize_admin(bearer(SECRET), HERE)


@pytest.mark.parametrize("secret", [OTHER_SECRET, SECRET], ids=["unknown", "known"])  # each process draws its own
@pytest.mark.parametrize("keys", [(), (KEY,), (KEY, ADMIN)])
def test_admin_calls_are_rate_limited(keys, secret):
    control = access_control(*keys, burst=1)
    for error in (Unauthorized, RateLimited):
        with pytest.raises(error):
            control.authorize_admin(bearer(secret), HERE)
