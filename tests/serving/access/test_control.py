"""Authorization of requests, with and without keys and rate limits."""

import pytest
from litestar.datastructures import Headers

from serving.access.control import AccessControl, Client, RateLimiter
from serving.access.keys import ApiKeys, make_key
from serving.errors import RateLimited, Unauthorized

SECRET, KEY = make_key("phone")
ADMIN_SECRET, ADMIN = make_key("gardener", is_admin=True)
OTHER_SECRET, _ = make_key("stranger")
HERE, THERE = "192.0.2.1", "192.0.2.2"


def headers(*pairs):
    return Headers([(name.lower().encode(), value.encode("latin-1")) for name, value in pairs])


def bearer(secret):
    return headers(("Authorization", f"Bearer {secret}"))


def access_control(*keys, burst=None):
    return AccessControl(ApiKeys(keys) if keys else None, burst and RateLimiter(1, burst, clock=lambda: 0.0))


def ask(control, sent, address):
    """Returns the client of a request that is counted for its rate."""
    client = control.authorize(sent, address)
    control.limit(client.identity)
    return client


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
def test_valid_key_is_authorized(sent):
    control = access_control(ADMIN, KEY)
    assert control.authorize(sent, HERE) == Client("phone", is_admin=False, identity="key phone")
    assert control.requires_key


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
def test_invalid_credentials_are_refused_and_not_shown(sent):
    with pytest.raises(Unauthorized) as caught:
        access_control(KEY).authorize(sent, HERE)
    assert "Authorization: Bearer KEY" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert OTHER_SECRET not in str(caught.value)


# ---- rates


def test_without_keys_each_address_has_its_own_rate():
    control = access_control(burst=2)
    for _ in range(2):
        ask(control, headers(), HERE)
    with pytest.raises(RateLimited, match="60 seconds"):
        ask(control, headers(), HERE)
    ask(control, headers(), THERE)


def test_ipv6_addresses_of_one_network_share_a_rate():
    control = access_control(burst=1)
    ask(control, headers(), "2001:db8::1")
    with pytest.raises(RateLimited):
        ask(control, headers(), "2001:db8::2")


def test_key_has_one_rate_across_addresses():
    control = access_control(KEY, ADMIN, burst=2)
    for address in (HERE, THERE):
        ask(control, bearer(SECRET), address)
    with pytest.raises(RateLimited):
        ask(control, bearer(SECRET), "192.0.2.3")
    ask(control, bearer(ADMIN_SECRET), HERE)


def test_failed_attempts_are_limited_by_address():
    control = access_control(KEY, burst=2)
    for _ in range(2):
        with pytest.raises(Unauthorized):
            control.authorize(bearer(OTHER_SECRET), HERE)
    for sent in (bearer(OTHER_SECRET), headers()):
        with pytest.raises(RateLimited):
            control.authorize(sent, HERE)
    with pytest.raises(Unauthorized):
        control.authorize(bearer(OTHER_SECRET), THERE)


def test_failed_attempts_do_not_block_a_valid_key_at_the_same_address():
    control = access_control(KEY, burst=1)
    for _ in range(5):
        with pytest.raises((Unauthorized, RateLimited)):
            control.authorize(bearer(OTHER_SECRET), HERE)
    assert ask(control, bearer(SECRET), HERE).name == "phone"


def test_key_named_like_an_address_has_its_own_rate():
    control = access_control(make_key("192.0.2.1")[1], KEY, burst=1)
    with pytest.raises(Unauthorized):
        control.authorize(headers(), HERE)
    secret, key = make_key(HERE)
    control = access_control(key, burst=1)
    with pytest.raises(Unauthorized):
        control.authorize(headers(), HERE)
    assert ask(control, bearer(secret), HERE).name == HERE


# ---- admin calls


@pytest.mark.parametrize("sent", [headers(), bearer(OTHER_SECRET), bearer(SECRET)])
def test_admin_calls_require_an_admin_key(sent):
    with pytest.raises(Unauthorized):
        access_control(KEY, ADMIN).authorize_admin(sent, HERE)


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_refusal_without_any_admin_key_tells_how_to_make_one(keys):
    with pytest.raises(Unauthorized, match=r"python -m serving\.access\.keys NAME --admin"):
        access_control(*keys).authorize_admin(bearer(SECRET), HERE)


@pytest.mark.parametrize("keys", [(), (KEY,), (KEY, ADMIN)])
def test_admin_calls_are_rate_limited(keys):
    control = access_control(*keys, burst=1)
    with pytest.raises(Unauthorized):
        control.authorize_admin(bearer(OTHER_SECRET), HERE)
    with pytest.raises(RateLimited):
        control.authorize_admin(bearer(OTHER_SECRET), HERE)
