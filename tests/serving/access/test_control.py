"""Who is let in: with and without keys, with and without rates."""

import pytest
from litestar.datastructures import Headers

from serving.access.control import Client, Gate
from serving.access.keys import Keys, make_key
from serving.access.rates import Rates
from serving.errors import RateLimited, Unauthorized

SECRET, KEY = make_key("phone")
ADMIN_SECRET, ADMIN = make_key("gardener", is_admin=True)
OTHER_SECRET, _ = make_key("stranger")
HERE, THERE = "192.0.2.1", "192.0.2.2"


def headers(*pairs):
    return Headers([(name.lower().encode(), value.encode("latin-1")) for name, value in pairs])


def bearer(secret):
    return headers(("Authorization", f"Bearer {secret}"))


def gate(*keys, burst=None):
    return Gate(Keys(keys) if keys else None, burst and Rates(1, burst, clock=lambda: 0.0))


def test_without_keys_everybody_enters():
    open_gate = gate()
    assert open_gate.enter(headers(), HERE) == Client("", is_admin=False)
    assert open_gate.enter(bearer(SECRET), None) == Client("", is_admin=False)
    assert not open_gate.has_keys


@pytest.mark.parametrize(
    "sent",
    [
        headers(("Authorization", f"Bearer {SECRET}")),
        headers(("Authorization", f"bearer   {SECRET} ")),
        headers(("X-API-Key", SECRET)),
        headers(("X-API-Key", SECRET), ("Authorization", "Basic cm9zZTpidWQ=")),
        headers(("X-API-Key", SECRET), ("Authorization", f"Bearer {OTHER_SECRET}")),
    ],
)
def test_key_opens(sent):
    closed = gate(ADMIN, KEY)
    assert closed.enter(sent, HERE) == Client("phone", is_admin=False)
    assert closed.has_keys


@pytest.mark.parametrize(
    "sent",
    [
        headers(),
        bearer(""),
        bearer(OTHER_SECRET),
        bearer(KEY.sha256),
        bearer(SECRET[:-1]),
        headers(("Authorization", SECRET)),
        headers(("Authorization", f"Basic {SECRET}")),
        headers(("Authorization", f"Bearer{SECRET}")),
        headers(("Authorization", f"Bearer {SECRET}"), ("Authorization", f"Bearer {SECRET}")),
        headers(("X-API-Key", ""), ("Authorization", f"Bearer {SECRET}")),
        headers(("X-API-Key", OTHER_SECRET), ("Authorization", f"Bearer {SECRET}")),
        headers(("X-API-Key", SECRET), ("X-API-Key", SECRET)),
        headers(("X-API-Key", "\xff" * 50)),
        headers(("Cookie", f"key={SECRET}")),
    ],
)
def test_anything_else_is_unauthorized_and_not_repeated(sent):
    with pytest.raises(Unauthorized) as caught:
        gate(KEY).enter(sent, HERE)
    assert "Authorization: Bearer KEY" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert OTHER_SECRET not in str(caught.value)


# ---- rates


def test_without_keys_each_address_has_its_rate():
    limited = gate(burst=2)
    for _ in range(2):
        limited.enter(headers(), HERE)
    with pytest.raises(RateLimited, match="60 seconds"):
        limited.enter(headers(), HERE)
    limited.enter(headers(), THERE)


def test_ipv6_customer_has_one_rate_for_all_its_addresses():
    limited = gate(burst=1)
    limited.enter(headers(), "2001:db8::1")
    with pytest.raises(RateLimited):
        limited.enter(headers(), "2001:db8::2")


def test_key_has_one_rate_wherever_it_is_used():
    limited = gate(KEY, ADMIN, burst=2)
    for address in (HERE, THERE):
        limited.enter(bearer(SECRET), address)
    with pytest.raises(RateLimited):
        limited.enter(bearer(SECRET), "192.0.2.3")
    limited.enter(bearer(ADMIN_SECRET), HERE)


def test_guesses_are_limited_by_address():
    limited = gate(KEY, burst=2)
    for _ in range(2):
        with pytest.raises(Unauthorized):
            limited.enter(bearer(OTHER_SECRET), HERE)
    for sent in (bearer(OTHER_SECRET), headers()):
        with pytest.raises(RateLimited):
            limited.enter(sent, HERE)
    with pytest.raises(Unauthorized):
        limited.enter(bearer(OTHER_SECRET), THERE)


def test_guesses_do_not_lock_out_a_neighbor_with_a_right_key():
    limited = gate(KEY, burst=1)
    for _ in range(5):
        with pytest.raises((Unauthorized, RateLimited)):
            limited.enter(bearer(OTHER_SECRET), HERE)
    assert limited.enter(bearer(SECRET), HERE).name == "phone"


def test_address_cannot_be_taken_for_a_key():
    limited = gate(make_key("192.0.2.1")[1], KEY, burst=1)
    with pytest.raises(Unauthorized):
        limited.enter(headers(), HERE)
    secret, key = make_key(HERE)
    named = gate(key, burst=1)
    with pytest.raises(Unauthorized):
        named.enter(headers(), HERE)
    assert named.enter(bearer(secret), HERE).name == HERE


# ---- admin calls


def test_admin_key_opens_admin_calls():
    assert gate(KEY, ADMIN).enter_admin(bearer(ADMIN_SECRET), HERE) == Client("gardener", is_admin=True)


@pytest.mark.parametrize("sent", [headers(), bearer(OTHER_SECRET), bearer(SECRET)])
def test_admin_calls_need_an_admin_key(sent):
    with pytest.raises(Unauthorized):
        gate(KEY, ADMIN).enter_admin(sent, HERE)


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_without_any_admin_key_the_refusal_tells_how_to_make_one(keys):
    with pytest.raises(Unauthorized, match=r"python -m serving\.access\.keys NAME --admin"):
        gate(*keys).enter_admin(bearer(SECRET), HERE)


@pytest.mark.parametrize("keys", [(), (KEY,), (KEY, ADMIN)])
def test_admin_calls_are_limited_too(keys):
    limited = gate(*keys, burst=1)
    with pytest.raises(Unauthorized):
        limited.enter_admin(bearer(OTHER_SECRET), HERE)
    with pytest.raises(RateLimited):
        limited.enter_admin(bearer(OTHER_SECRET), HERE)
