"""The trusted proxies, whose header X-Forwarded-For gives the client's address.

uvicorn reads the header. It takes the rightmost address that is not a trusted proxy's; only a trusted proxy can have
written that one. uvicorn treats a mistyped address as a host name that never matches, so the setting is validated here.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from models.errors import InputError

_MAPPED: Final = "::ffff:"  # prefix of an IPv4 address on a dual-stack socket, RFC 4291, 2.5.5.2
_MAPPED_BITS: Final = 96


def forwarded_allow_ips(proxies: Sequence[str]) -> list[str]:
    """Returns the networks for uvicorn's setting of this name; an empty list trusts no proxy.

    Args:
        proxies: Addresses and networks of the proxies, such as 10.0.0.7 or 10.0.0.0/24.

    Raises:
        InputError: An entry is neither an address nor a network, or contains every address. Trusting every address
            would let clients choose the address by which they are limited.
    """
    return [str(network) for proxy in proxies for network in _with_mapped(_network(proxy))]


def _network(proxy: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(proxy)
    except ValueError:
        if proxy != "*":
            raise InputError(
                "--trusted-proxies contains neither an address nor a network",
                value=repr(proxy[:80]),
                limit="an address such as 10.0.0.7 or a network such as 10.0.0.0/24, with no host bits set",
                remedy="name the proxies' own addresses",
            ) from None
    else:
        if network.prefixlen > 0:
            return network
    raise InputError(
        "--trusted-proxies may not trust everybody, because clients could then choose their address",
        value=proxy,
        remedy="name the proxies' own addresses or networks",
    )


def _with_mapped(network: IPv4Network | IPv6Network) -> list[IPv4Network | IPv6Network]:
    """Adds the IPv4-mapped IPv6 form of an IPv4 network."""
    if isinstance(network, IPv6Network):
        return [network]
    return [network, IPv6Network(f"{_MAPPED}{network.network_address}/{_MAPPED_BITS + network.prefixlen}")]
