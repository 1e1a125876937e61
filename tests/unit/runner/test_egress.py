"""The addresses that modules may call: public ones, in whatever form, and what the operator allows."""

import ipaddress

import pytest

from services.runner.core.egress import Egress

PRIVATE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.1.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
]
METADATA = [
    "169.254.169.254",  # AWS, Azure, Google, DigitalOcean, OpenStack, ...
    "169.254.170.2",  # AWS containers
    "169.254.0.23",  # Tencent
    "100.100.100.200",  # Alibaba
    "192.0.0.192",  # Oracle
    "168.63.129.16",  # Azure, for its virtual machines
    "fd00:ec2::254",  # AWS
    "fd20:ce::254",  # Google
]
PRIVATE_V6 = [
    "::",
    "::1",
    "fc00::1",
    "fdff::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "100::1",
    "64:ff9b:1::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
]
PUBLIC = ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001:80b::200e"]


def forms_of(address: str) -> list[str]:
    """The ways in which IPv6 can reach an IPv4 address."""
    bits = int(ipaddress.IPv4Address(address))
    high, low = bits >> 16, bits & 0xFFFF
    tail = f"{high:x}:{low:x}"
    teredo = f"2001:0:{tail}::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}"
    return [f"::ffff:{tail}", f"::{tail}", f"::ffff:0:{tail}", f"64:ff9b::{tail}", f"2002:{tail}::1", teredo]


@pytest.mark.parametrize("address", [*PRIVATE, *METADATA, *PRIVATE_V6])
def test_an_address_that_is_not_public_is_refused_in_every_form(address: str) -> None:
    assert not Egress().permits(address)
    for form in forms_of(address) if "." in address else ():
        assert not Egress().permits(form), form


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address: str) -> None:
    assert Egress().permits(address)
    if "." in address:
        mapped, compatible, translated, nat64, sixtofour, teredo = forms_of(address)
        assert Egress().permits(mapped)
        assert Egress().permits(nat64)
        assert not any(map(Egress().permits, (compatible, translated, sixtofour, teredo)))


def test_a_network_that_is_allowed_is_open_in_the_forms_that_mean_its_addresses_and_no_other_is() -> None:
    egress = Egress((ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/16")))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::1", "1.1.1.1"):
        assert egress.permits(address), address
    for address in ("10.2.0.1", "::ffff:10.2.0.1", "2002:a01:203::1", "fd01::1", "169.254.169.254"):
        assert not egress.permits(address), address
