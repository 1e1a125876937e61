"""Services get in by their certificates, and everybody else by a key at the public address."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.grpc.guard import Guard
from services.chassis.grpc.limits import INTERNAL
from services.chassis.identity.callers import ServiceCredential, members, services
from services.chassis.identity.tls import Pair, PublicAddress, Tls
from services.chassis.process.config import InvalidSettings, ProcessSettings
from tests.support.certificates import Authority
from tests.support.postgres import free_port
from tests.unit.chassis.shop import SECRET, SHOP_METHODS, Counter, KeyRing, Shop, guard_of, open_shop, refused

NAME = "shop.internal"
RULE = services("api") | members("ADMIN")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


Certify = Callable[[str], Tls]


@pytest.fixture(scope="module")
def certify(authority: Authority) -> Certify:
    """A certificate for a service of that name."""

    def certified(service: str) -> Tls:
        return Tls(authority.pair(service, x509.DNSName(NAME)), authority.file, NAME)

    return certified


class Shopfront(NamedTuple):
    """A caller at each of the shop's two addresses."""

    inside: Counter
    outside: Counter


@pytest_asyncio.fixture(loop_scope="session")
async def front(shop: Shop, authority: Authority, certify: Certify) -> AsyncIterator[Shopfront]:
    guard = Guard(dict.fromkeys(SHOP_METHODS, RULE), keys=KeyRing())
    port = free_port()
    public = PublicAddress(f"127.0.0.1:{port}", authority.pair("public", x509.DNSName("shop.example")))
    async with open_shop(shop, guard, tls=certify("till"), public=public, limits=INTERNAL) as inside:
        outside = Counter(shop, inside.server, port)
        yield Shopfront(inside, outside)
        await outside.close()


async def test_a_service_is_known_by_its_certificate(front: Shopfront, certify: Certify) -> None:
    answer = await front.inside.stub(tls=certify("api")).Buy(front.inside.order())
    assert answer.receipt == "service:api api"


@pytest.mark.parametrize("name", ["runner", "nobody", "API", "é"])
async def test_a_certificate_of_another_name_may_call_nothing_more(
    front: Shopfront, certify: Certify, name: str
) -> None:
    refusal = await refused(front.inside.stub(tls=certify(name)).Buy(front.inside.order()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED")


async def test_without_a_certificate_of_the_authority_nobody_gets_in(
    front: Shopfront, authority: Authority, stranger: Authority
) -> None:
    names = x509.DNSName(NAME)
    for tls in (None, Tls(None, authority.file, NAME), Tls(stranger.pair("api", names), authority.file, NAME)):
        refusal = await refused(front.inside.stub(tls=tls, bearer="admin").Buy(front.inside.order()))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "")


async def test_a_caller_trusts_its_own_authority_alone(front: Shopfront, stranger: Authority) -> None:
    tls = Tls(stranger.pair("api"), stranger.file, NAME)
    assert (await refused(front.inside.stub(tls=tls).Buy(front.inside.order()))).reason == ""


async def test_two_authorities_are_believed_while_one_follows_the_other(
    shop: Shop, authority: Authority, tmp_path: Path
) -> None:
    successor = Authority(tmp_path, "successor")
    both, names = tmp_path / "both.pem", x509.DNSName(NAME)
    both.write_bytes(authority.file.read_bytes() + successor.file.read_bytes())
    guard = Guard(dict.fromkeys(SHOP_METHODS, RULE))
    async with open_shop(shop, guard, tls=Tls(successor.pair("till", names), both, NAME)) as counter:
        for each in (authority, successor):
            answer = await counter.stub(tls=Tls(each.pair("api", names), both, NAME)).Buy(counter.order())
            assert answer.receipt == "service:api api"


async def test_at_the_public_address_a_key_and_the_authority_are_enough(front: Shopfront, authority: Authority) -> None:
    tls = Tls(None, authority.file, "shop.example")
    answer = await front.outside.stub(tls=tls, bearer="admin").Buy(front.outside.order())
    assert answer.receipt == "member:ADMIN key-admin"
    health: Any = health_pb2_grpc.HealthStub(front.outside.channel(tls=tls))
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_at_the_public_address_nobody_is_a_service(
    front: Shopfront, authority: Authority, certify: Certify
) -> None:
    certified = Tls(certify("api").pair, authority.file, "shop.example")
    refusal = await refused(front.outside.stub(tls=certified).Buy(front.outside.order()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_MISSING")
    signed = {"tls": certified, "credential": ServiceCredential([SECRET], "api")}
    refusal = await refused(front.outside.stub(**signed).Buy(front.outside.order()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_INVALID")
    assert not (await refused(front.outside.stub(bearer="admin").Buy(front.outside.order()))).reason


async def test_a_public_port_that_is_taken_is_named(shop: Shop, counter: Counter, certify: Certify) -> None:
    tls = certify("till")
    assert tls.pair is not None
    with pytest.raises(OSError, match=counter.address):
        async with open_shop(shop, guard_of(), tls=tls, public=PublicAddress(counter.address, tls.pair)):
            pass


def settings_of(authority: Authority, pair: Pair, **more: Any) -> ProcessSettings:
    return ProcessSettings(
        tls_certificate_file=pair.certificate_file,
        tls_key_file=pair.key_file,
        tls_authority_file=authority.file,
        **more,
    )


def test_the_public_address_shows_the_same_certificate_unless_told_another(authority: Authority) -> None:
    inner, outer = authority.pair("api"), authority.pair("public")
    address = "127.0.0.1:0"
    assert settings_of(authority, inner).public is None
    assert settings_of(authority, inner, public_grpc_address=address).public == PublicAddress(address, inner)
    given = settings_of(
        authority,
        inner,
        public_grpc_address=address,
        public_tls_certificate_file=outer.certificate_file,
        public_tls_key_file=outer.key_file,
    )
    assert given.public == PublicAddress(address, outer)


class CallingSettings(ProcessSettings):
    _is_called = False


def test_a_process_that_only_calls_needs_the_authority_alone(authority: Authority) -> None:
    assert CallingSettings(tls_authority_file=authority.file).tls == Tls(None, authority.file)
    with pytest.raises(InvalidSettings, match="the peers demand tls_certificate_file"):
        ProcessSettings(tls_authority_file=authority.file)


def test_settings_that_contradict_each_other_are_refused(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    pair, other = authority.pair("api"), stranger.pair("api")
    secret = tmp_path / "secret"
    secret.write_text("sixteen characters and more\n")
    with pytest.raises(InvalidSettings, match="two ways to know the peers"):
        settings_of(authority, pair, service_secret_file=secret)
    with pytest.raises(InvalidSettings, match="cannot be used as certificate and key"):
        settings_of(authority, Pair(pair.certificate_file, other.key_file))
    with pytest.raises(InvalidSettings, match="cannot be used as certificate and key"):
        settings_of(authority, Pair(tmp_path / "missing", pair.key_file))
    with pytest.raises(InvalidSettings, match="contains no CA certificate"):
        CallingSettings(tls_authority_file=secret)
    with pytest.raises(InvalidSettings, match="needs public_grpc_address"):
        settings_of(
            authority, pair, public_tls_certificate_file=pair.certificate_file, public_tls_key_file=pair.key_file
        )
    halves: list[dict[str, Any]] = [{}, {"tls_certificate_file": pair.certificate_file, "tls_key_file": pair.key_file}]
    for without in halves:
        with pytest.raises(InvalidSettings, match="public_grpc_address needs"):
            ProcessSettings(public_grpc_address="127.0.0.1:0", **without)
