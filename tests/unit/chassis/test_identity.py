"""The rules that methods declare, and the credential between services."""

from pathlib import Path

import pytest

from services.chassis.identity.callers import (
    ANONYMOUS,
    CallerKind,
    Identity,
    ServiceCredential,
    anyone,
    members,
    runners,
    services,
    system,
)

SECRET, OTHER = b"a secret of enough length", b"another one of that length"
ADMIN = Identity(CallerKind.MEMBER, "key-1", "w", "ADMIN")
VIEWER = Identity(CallerKind.MEMBER, "key-2", "w", "VIEWER")
API = Identity(CallerKind.SERVICE, "api")
RUNNER = Identity(CallerKind.RUNNER, "key-3")
SYSTEM = Identity(CallerKind.SYSTEM, "key-4")


def test_a_rule_allows_whom_it_names_and_nobody_else() -> None:
    everyone = {ADMIN, VIEWER, API, RUNNER, SYSTEM, ANONYMOUS}
    allowed = {
        members("ADMIN"): {ADMIN},
        members("ADMIN", "VIEWER"): {ADMIN, VIEWER},
        services("api"): {API},
        services("dispatcher"): set(),
        system() | runners(): {SYSTEM, RUNNER},
        anyone(): everyone,
        anyone() | system(): everyone,
    }
    for rule, expected in allowed.items():
        assert {who for who in everyone if rule.allows(who)} == expected


def test_a_role_is_not_mistaken_for_a_service_or_a_kind() -> None:
    assert not services("api").allows(Identity(CallerKind.MEMBER, "api", "w", "api"))
    assert not system().allows(Identity(CallerKind.SERVICE, "system"))


def test_a_rule_carries_its_time_and_trace() -> None:
    rule = members("ADMIN").within(5).with_trace()
    assert (rule.seconds_max, rule.is_traced) == (5, True)
    assert (rule | services("api")).seconds_max == 5
    assert str(services("b", "a")) == "service:a, service:b"
    assert str(anyone()) == "anyone"


def header(credential: ServiceCredential) -> str:
    return credential.metadata[0][1]


def test_a_service_is_known_by_its_signature() -> None:
    api, dispatcher = ServiceCredential([SECRET], "api"), ServiceCredential([SECRET], "dispatcher")
    for _ in range(2):
        assert dispatcher.verify(header(api)) == "api"
    assert SECRET.decode() not in header(api)


@pytest.mark.parametrize("wrong", ["", "api", "api:", "api:00", "é:ü", "dispatcher:{signature}"])
def test_a_wrong_signature_is_nobody(wrong: str) -> None:
    api = ServiceCredential([SECRET], "api")
    signature = header(api).partition(":")[2]
    assert api.verify(wrong.format(signature=signature)) is None


def test_another_secret_is_nobody_and_leaves_no_trace() -> None:
    api = ServiceCredential([SECRET], "api")
    assert ServiceCredential([OTHER], "dispatcher").verify(header(api)) is None


def test_a_secret_is_changed_without_an_outage(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(OTHER + b"\n\n" + SECRET + b"\n")
    both = ServiceCredential.from_file(file, "api")
    assert both.verify(header(ServiceCredential([SECRET], "dispatcher"))) == "dispatcher"
    assert ServiceCredential([OTHER], "x").verify(header(both)) == "api"
    assert ServiceCredential([SECRET], "x").verify(header(both)) is None


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        ServiceCredential([b"short"], "api")
    with pytest.raises(ValueError, match="at least 16"):
        ServiceCredential([], "api")
