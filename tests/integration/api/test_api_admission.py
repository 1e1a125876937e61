"""Every method of the api, found by the descriptors, admits or refuses every kind of caller as it should.

A new method is tested here by itself, because its author does not choose its answer to a bad key.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import grpc
import psycopg
import pytest

from services.api.rpc.allowed_callers import RULES
from services.api.store.keys import PostgresKeys
from services.chassis.grpc.errors import RemoteError, remote_error
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.postgres.database import Database
from tests.integration.api.conftest import RunningApi, make_key
from tests.support.api import answer_to, path_of
from tests.unit.api.test_api_rules import FILES, OPEN
from windlass.api.v1 import executions_pb2, executions_pb2_grpc, workspaces_pb2, workspaces_pb2_grpc

METHODS = {
    path_of(method): method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    # The token in the request is the whole permission for these.
    if path_of(method) not in OPEN
}
LIST_WORKFLOWS = "/windlass.api.v1.WorkflowService/ListWorkflows"


async def refusal(api: RunningApi, method: str, metadata: list[tuple[str, str]]) -> RemoteError:
    """The answer to an empty request. Every method refuses one, or has nothing to refuse."""
    return await answer_to(api.channel(), METHODS[method], b"", metadata, 10)


def shown(error: RemoteError) -> tuple[str, str]:
    return error.code.name, error.reason


@pytest.mark.parametrize("method", METHODS)
async def test_call_without_a_key_is_refused(api: RunningApi, method: str) -> None:
    assert shown(await refusal(api, method, [])) == ("UNAUTHENTICATED", "KEY_MISSING")


@pytest.mark.parametrize("key", ["wl_admin_" + "0" * 64, "x", "", "ü" * 20, "k" * 5000])
async def test_key_that_is_unknown_or_malformed_is_refused(api: RunningApi, key: str) -> None:
    metadata = [("authorization", f"Bearer {key}".encode("ascii", "replace").decode())]
    for method in METHODS:
        assert shown(await refusal(api, method, metadata)) == ("UNAUTHENTICATED", "KEY_INVALID")


async def test_every_method_refuses_an_expired_key(api: RunningApi) -> None:
    key_id = await make_key(api, "expired", "ADMIN")
    async with await psycopg.AsyncConnection.connect(api.url) as connection:
        past = datetime.now(UTC) - timedelta(seconds=1)
        await connection.execute("UPDATE api_keys SET expire_time = %s WHERE key_id = %s", (past, key_id))
    for method in METHODS:
        assert shown(await refusal(api, method, api.bearer("expired"))) == ("UNAUTHENTICATED", "KEY_EXPIRED")


async def test_every_method_refuses_a_revoked_key(api: RunningApi) -> None:
    key_id = await make_key(api, "revoked", "ADMIN")
    assert (await refusal(api, LIST_WORKFLOWS, api.bearer("revoked"))).code is grpc.StatusCode.OK
    keys = workspaces_pb2_grpc.ApiKeyServiceStub(api.channel())
    await keys.RevokeApiKey(
        workspaces_pb2.RevokeApiKeyRequest(key_id=key_id), metadata=api.bearer(api.keys.admin), timeout=10
    )
    for method in METHODS:
        assert shown(await refusal(api, method, api.bearer("revoked"))) == ("UNAUTHENTICATED", "KEY_INVALID")


async def test_key_revoked_by_another_replica_is_refused_at_the_latest_a_second_later(api: RunningApi) -> None:
    """The database tells the running api, because the key is revoked without it."""
    key_id = await make_key(api, "revoked elsewhere", "VIEWER")
    assert (await refusal(api, LIST_WORKFLOWS, api.bearer("revoked elsewhere"))).code is grpc.StatusCode.OK
    database = Database(api.url, name="test")
    await PostgresKeys(database).revoke(Identity(CallerKind.SYSTEM, "test"), key_id)
    await database.close()
    while (answer := shown(await refusal(api, LIST_WORKFLOWS, api.bearer("revoked elsewhere"))))[0] == "OK":
        pass
    assert answer == ("UNAUTHENTICATED", "KEY_INVALID")


@pytest.mark.parametrize(
    "role", ["VIEWER", "WORKFLOW", "ADMIN", "RUNNER", "SYSTEM", "coordinator", "dispatcher", "api"]
)
async def test_caller_passes_exactly_where_the_rules_let_him(api: RunningApi, role: str) -> None:
    own = {"SYSTEM": ("system", api.keys.system), "RUNNER": ("runner", api.keys.runner)}
    if role.islower():
        grade, metadata = f"service:{role}", api.service(role)
    elif role in own:
        grade, metadata = own[role][0], api.bearer(own[role][1])
    else:
        await make_key(api, f"a {role}", role)
        grade, metadata = f"member:{role}", api.bearer(f"a {role}")
    for method in METHODS:
        answer = await refusal(api, method, metadata)
        if grade in RULES[method].allow:
            assert answer.code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        else:
            assert shown(answer) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
            assert answer.metadata["method"] == method


async def test_every_method_refuses_a_forged_service_credential(api: RunningApi) -> None:
    metadata = [("x-windlass-service", "coordinator:" + "0" * 64)]
    for method in METHODS:
        assert shown(await refusal(api, method, metadata)) == ("UNAUTHENTICATED", "KEY_INVALID")


async def test_without_peers_reads_say_what_is_away(api: RunningApi) -> None:
    executions = executions_pb2_grpc.ExecutionServiceStub(api.channel())
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await executions.GetExecution(
            executions_pb2.GetExecutionRequest(execution_id="01a1ef02-cd5c-7fc1-ac68-79b46e7a0574"),
            metadata=api.bearer(api.keys.admin),
            timeout=15,
        )
    answer = remote_error(failed.value)
    assert shown(answer) == ("UNAVAILABLE", "DEPENDENCY_UNAVAILABLE")
    assert answer.retry_after
