"""A stack runs as in production: services know each other by certificates, and everybody else shows a key."""

import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from services.api.rpc.allowed_callers import RULES as API_RULES
from services.chassis.grpc.errors import remote_error
from services.chassis.identity.callers import CallerKind, Identity, Rule
from services.chassis.identity.tls import Tls
from services.coordinator.rpc.allowed_callers import RULES as COORDINATOR_RULES
from services.dispatcher.rpc.allowed_callers import RULES as DISPATCHER_RULES
from tests.support.api import Client
from tests.support.certificates import Authority
from tests.support.command_line import windlass
from tests.support.postgres import Database
from tests.support.probe import eventually
from tests.support.secured import SERVICES, Secured, secured_services
from tests.unit.api.test_api_rules import OPEN
from windlass.api.v1 import resources_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub

RULES: Mapping[str, Mapping[str, Rule]] = {
    "api": API_RULES,
    "dispatcher": DISPATCHER_RULES,
    "coordinator": COORDINATOR_RULES,
}
SECONDS = 20.0
NOOP: dict[str, Any] = {"id": "only", "module": "noop@1"}
SUCCESS = resources_pb2.Execution.SUCCESS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def secured(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    async with secured_services(database, tmp_path_factory.mktemp("secured")) as made:
        yield made


async def ending(channel: grpc.aio.Channel, method: str, *metadata: tuple[str, str]) -> tuple[str, str]:
    """The end of an empty call of that method: the code and, if a service gave one, the reason."""
    call: Any = channel.unary_unary(method)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=metadata, timeout=SECONDS)
    refusal = remote_error(caught.value)
    return refusal.code.name, refusal.reason


async def created(secured: Secured, key: str, **request: Any) -> workspaces_pb2.CreateApiKeyResponse:
    answer: workspaces_pb2.CreateApiKeyResponse = await ApiKeyServiceStub(secured.channel()).CreateApiKey(
        workspaces_pb2.CreateApiKeyRequest(**request), metadata=[("authorization", f"Bearer {key}")], timeout=SECONDS
    )
    return answer


def said(
    secured: Secured, key_file: Path, *arguments: str, authority: Path | None = None
) -> subprocess.CompletedProcess[str]:
    asked = [*arguments, "--address", secured.public["api"], "--key-file", key_file, "--json"]
    return windlass(*asked, WINDLASS_AUTHORITY_FILE=authority or secured.authority.file)


async def test_the_command_line_with_a_key_and_the_authority_sees_work_to_its_end(
    secured: Secured, tmp_path: Path
) -> None:
    key_file, definition = tmp_path / "admin.key", tmp_path / "one.json"
    key_file.write_text(secured.keys.admin)
    definition.write_text(json.dumps({"name": "one", "nodes": [NOOP]}))
    applied = said(secured, key_file, "workflow", "apply", str(definition))
    assert applied.returncode == 0, applied.stderr
    started = said(secured, key_file, "start", "one", "--wait")
    assert started.returncode == 0, started.stderr
    execution = json.loads(started.stdout)
    assert execution["state"] == "SUCCESS"
    watched = said(secured, key_file, "watch", execution["id"])
    assert len(watched.stdout.splitlines()) == int(execution["lastSeq"])
    distrusted = said(secured, key_file, "get", execution["id"], authority=Authority(tmp_path).file)
    assert distrusted.returncode == 1
    assert f"no api answers at {secured.public['api']} over TLS" in distrusted.stderr


async def test_a_runner_with_a_key_and_the_authority_is_granted_its_workspaces_work(secured: Secured) -> None:
    made = await created(secured, secured.keys.admin, role=workspaces_pb2.RUNNER, title="at home")
    key_file = secured.log_file("guest").with_suffix(".key")
    key_file.write_text(made.key)
    settings = {
        "COORDINATORS": secured.public["coordinator"],
        "RUNNER_KEY_FILE": key_file,
        "RUNNER_ID": "guest",
        "RUNNER_LABELS": "at=home",
        "GRPC_ADDRESS": "127.0.0.1:0",
    }
    client = Client(secured)
    await client.apply("homely", [NOOP | {"runnerLabels": {"at": "home"}}])
    await secured.run("guest", "runner", secured.common() | settings)
    try:
        execution = await client.run("homely")
    finally:
        await secured.kill("guest")
    assert execution.state == SUCCESS
    (run,) = await client.runs_of(execution.id)
    assert run.runner == "guest"


@pytest.mark.parametrize("service", SERVICES)
async def test_nobody_gets_to_a_service_without_a_certificate_of_the_authority(
    secured: Secured, service: str, tmp_path: Path
) -> None:
    authority, address = secured.authority.file, secured.inner[service]
    stranger = Tls(Authority(tmp_path).pair("api"), authority)
    for channel in (
        secured.plain_channel(address),
        secured.plain_channel(secured.public[service]),
        secured.channel(address=address),
        secured.channel(address=address, tls=stranger),
    ):
        key = ("authorization", f"Bearer {secured.keys.admin}")
        assert await ending(channel, "/grpc.health.v1.Health/Check", key) == ("UNAVAILABLE", "")


@pytest.mark.parametrize("service", RULES)
@pytest.mark.parametrize("name", [*SERVICES, "nobody"])
async def test_a_certificate_may_call_only_what_its_service_needs(secured: Secured, service: str, name: str) -> None:
    tls = Tls(secured.authority.pair(name), secured.authority.file)
    channel = secured.channel(address=secured.inner[service], tls=tls)
    denied = [method for method, rule in RULES[service].items() if not rule.allows(Identity(CallerKind.SERVICE, name))]
    assert denied
    for method in denied:
        assert await ending(channel, method) == ("PERMISSION_DENIED", "ROLE_REQUIRED"), method


@pytest.mark.parametrize("service", RULES)
async def test_the_public_address_serves_nobody_without_a_key(secured: Secured, service: str) -> None:
    channel = secured.channel(service)
    # The token in the request is the whole permission for those of OPEN.
    for method in RULES[service].keys() - OPEN:
        assert await ending(channel, method) == ("UNAUTHENTICATED", "KEY_MISSING"), method
        signed = await ending(channel, method, ("x-windlass-service", "coordinator:00"))
        assert signed == ("UNAUTHENTICATED", "KEY_INVALID"), method


@pytest.mark.chaos
@pytest.mark.parametrize("service", SERVICES)
async def test_work_goes_on_when_a_killed_service_comes_back_with_its_certificate(
    secured: Secured, service: str
) -> None:
    client = Client(secured)
    name = f"through-{service}"
    nodes = [{"id": "first", "module": "delay@1", "config": {"duration": "1s"}, "idempotent": True}, NOOP]
    await client.apply(name, nodes, edges=[{"from": "first", "to": "only"}])
    await client.apply("after", [NOOP])
    execution = await client.start(name)

    async def is_going() -> bool:
        return bool(await client.runs_of(execution.id))

    await eventually(is_going, SECONDS, "the first node to be granted")
    await secured.kill(service)
    await secured.start(service)
    assert (await client.end_of(execution.id)).state == SUCCESS
    assert (await client.run("after")).state == SUCCESS
