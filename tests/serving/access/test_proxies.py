"""Trusted proxies, tested through uvicorn's own middleware with the program's configuration."""

import asyncio

import pytest
import uvicorn

from models.errors import InputError
from serving.access.origins import forwarded_allow_ips
from tests.make import from_table

PROXIES = ("10.0.0.7", "172.16.0.0/12", "2001:db8:aa::/48")


def client_of(*forwarded, peer="10.0.0.7", proxies=PROXIES, **more):
    """The address that the application sees."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["client"])

    config = uvicorn.Config(
        app, log_config=None, proxy_headers=bool(proxies), forwarded_allow_ips=forwarded_allow_ips(proxies)
    )
    config.load()
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    scope = {"type": "http", "scheme": "http", "headers": headers, "client": peer and (peer, 5)}
    asyncio.run(config.loaded_app(scope, None, None))
    return seen[0] and seen[0][0]


@from_table
def test_client_address_is_read_through_trusted_proxies(forwarded, client):
    assert client_of(*forwarded) == client


@from_table
def test_addresses_that_the_client_added_are_ignored(forwarded):
    assert client_of(*forwarded) == "192.0.2.1"


@from_table
def test_header_of_an_untrusted_peer_is_ignored(peer):
    assert client_of("198.51.100.9", peer=peer) == peer


@from_table
def test_ipv4_proxy_is_recognized_on_a_dual_stack_socket(peer, client):
    assert client_of("192.0.2.1", peer=peer) == client


@from_table
def test_trusting_every_address_is_refused(proxy):
    with pytest.raises(InputError, match="may not trust everybody"):
        forwarded_allow_ips(["10.0.0.7", proxy])


@from_table
def test_invalid_address_is_refused(proxy):
    with pytest.raises(InputError, match="--trusted-proxies"):
        forwarded_allow_ips([proxy])
