"""Which addresses the modules of a runner may call: public ones, and the networks that the operator allows.

The rule is written out here, because Python's `is_global` differs between its releases and counts some ways to private
addresses as public. An IPv6 address can stand for an IPv4 address: a mapped one is that address for the kernel, and a
translator (NAT64) sends the packet there. Such an address is judged as the IPv4 address. The tunnels 6to4 and Teredo,
which do the same by way of relays, are refused as a whole.

Hazard: a translator with a prefix of its own looks like any public network. Where one is in use it must refuse private
addresses itself.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The special-purpose registries of IANA, as far as they are not for everybody.
_REFUSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by the customers of a provider; metadata of Alibaba Cloud
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "168.63.129.16/32",  # a public address at which Azure serves its virtual machines
        "2001::/23",  # protocol assignments; Teredo
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
# All of IPv6 that is assigned to the public. Loopback, link-local, unique local (with the metadata addresses of AWS and
# Google), site-local and multicast addresses are outside.
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
# RFC 6052. The last 32 bits are the IPv4 address.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Egress:
    """What one runner may call."""

    allowed: tuple[Network, ...] = ()

    def permits(self, address: str) -> bool:
        """`address` is numeric; the zone of a link-local one may follow."""
        written = ipaddress.ip_address(address.partition("%")[0])
        meant = _meant(written)
        return _is_public(meant) or any(written in network or meant in network for network in self.allowed)


def _meant(address: Address) -> Address:
    """The address that a packet reaches in the end."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _PUBLIC_V6:
        return False
    return not any(address in network for network in _REFUSED)
