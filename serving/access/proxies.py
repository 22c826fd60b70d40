"""Behind which proxies the header X-Forwarded-For says who asks.

uvicorn reads the header: it takes the first address from the right that is no trusted proxy's, which nobody but a
trusted proxy can have written. What it does not do is tell a typing mistake, which it takes for a name that never
comes: so the setting is checked here.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from models.errors import InputError

_MAPPED: Final = "::ffff:"  # how an IPv4 address shows on a socket that takes both kinds, RFC 4291, 2.5.5.2
_MAPPED_BITS: Final = 96


def forwarded_allow_ips(proxies: Sequence[str]) -> list[str]:
    """Gives the networks as uvicorn's setting of this name takes them; an empty list trusts nobody.

    Args:
        proxies: Addresses and networks of the proxies, such as 10.0.0.7 or 10.0.0.0/24.

    Raises:
        InputError: One is neither, or trusts everybody: then each client could choose the address it is known by.
    """
    return [str(network) for proxy in proxies for network in _both_kinds(_network(proxy))]


def _network(proxy: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(proxy)
    except ValueError:
        if proxy != "*":
            raise InputError(
                "the setting trusted_proxies holds what is neither an address nor a network",
                value=repr(proxy[:80]),
                limit="10.0.0.7 or 10.0.0.0/24, with no bit set beyond the prefix",
                remedy="name the proxies' own addresses",
            ) from None
    else:
        if network.prefixlen > 0:
            return network
    raise InputError(
        "the setting trusted_proxies may not trust everybody, or each client could choose the address it is known by",
        value=proxy,
        remedy="name the proxies' own addresses or networks",
    )


def _both_kinds(network: IPv4Network | IPv6Network) -> list[IPv4Network | IPv6Network]:
    if isinstance(network, IPv6Network):
        return [network]
    return [network, IPv6Network(f"{_MAPPED}{network.network_address}/{_MAPPED_BITS + network.prefixlen}")]
