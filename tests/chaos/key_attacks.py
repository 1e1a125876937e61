"""What a hostile workspace tries with keys, and with names that are not its own: attacks of the table in attacks.py."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_reflection.v1alpha import reflection_pb2

from deploy.local.launch import LANDLOCK_VERSION_MIN, landlock_version
from services.api.app.authenticator import TRUSTED_SECONDS
from services.api.rpc.allowed_callers import RULES as API_RULES
from services.chassis.grpc.errors import remote_error
from services.chassis.grpc.long_calls import CHECK_SECONDS
from services.chassis.grpc.reflection import METHOD, V1
from services.coordinator.rpc.allowed_callers import RULES as COORDINATOR_RULES
from services.dispatcher.rpc.allowed_callers import RULES as DISPATCHER_RULES
from tests.chaos.arena import ATTACK_SECONDS_MAX, SERVICES, Arena
from tests.chaos.prying_modules import places_of
from tests.e2e import test_session_floods as sessions
from tests.support.api import Client, new_workspace, output_of
from tests.support.probe import eventually
from windlass.api.v1 import executions_pb2, workspaces_pb2
from windlass.api.v1.resources_pb2 import Execution
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub, WorkspaceServiceStub

# The promised time in which calls end when their key is revoked.
REVOKED_SECONDS_MAX = 5
WATCHES, WAITING_STARTS = 40, 4
ATTACHES = 50


async def watches_after_its_key_is_revoked(arena: Arena) -> None:
    """Its watches and waiting starts go on when their key is revoked, until the api looks at the key again."""
    key_id, metadata = await arena.key(workspaces_pb2.WORKFLOW)

    async def revoke() -> None:
        request = workspaces_pb2.RevokeApiKeyRequest(key_id=key_id)
        await ApiKeyServiceStub(arena.stack.channel()).RevokeApiKey(request, metadata=arena.hostile.metadata)

    await _ends_in_time(arena, arena.hostile, metadata, revoke)


async def looks_for_the_service_secret(arena: Arena) -> None:
    """Its module reads the home, and what the kernel shows of the services. Whoever is not confined finds it there."""
    secret = arena.stack.service_secret_file().read_bytes().strip()
    folder, pids = str(arena.stack.home.root), sorted(arena.stack.seen)
    asked: dict[str, Any] = {"digest": sha256(secret).hexdigest(), "folder": folder, "pids": pids}
    assert await asyncio.to_thread(places_of, **asked)
    if landlock_version(ctypes.CDLL(None)) < LANDLOCK_VERSION_MIN:
        return  # nothing confines the runner here, as docs/security.md says
    await arena.hostile.apply("pries", [{"id": "a", "module": "attack.pries@1", "config": asked}])
    execution = await arena.hostile.run("pries")
    assert execution.state == Execution.SUCCESS, execution
    (run,) = await arena.hostile.runs_of(execution.id)
    assert await output_of(arena.hostile, run.id) == {"places": []}


async def watches_after_its_workspace_is_closed(arena: Arena) -> None:
    """The same when its workspace is closed."""
    # The name of a closed workspace is never free again.
    name = f"closed-{token_hex(4)}"
    closed = await new_workspace(arena.stack, name, executions_max=5)

    async def close() -> None:
        request = workspaces_pb2.DeleteWorkspaceRequest(workspace=name)
        workspaces = WorkspaceServiceStub(arena.stack.channel())
        await workspaces.DeleteWorkspace(request, metadata=arena.stack.metadata("system"))

    await _ends_in_time(arena, closed, closed.metadata, close)


async def _ends_in_time(
    arena: Arena, client: Client, metadata: Sequence[tuple[str, str]], close: Callable[[], Awaitable[None]]
) -> None:
    """Calls that may last for long end within the promised time after their key has ended."""
    assert CHECK_SECONDS + TRUSTED_SECONDS < REVOKED_SECONDS_MAX
    long = f"long-{token_hex(4)}"
    await client.apply(long, [{"id": "a", "module": "sleep@1", "config": {"duration": "1h"}}])
    term = {"duration": f"{REVOKED_SECONDS_MAX}s"}
    await arena.hostile.apply("term", [{"id": "a", "module": "sleep@1", "config": term}])
    timeout = Duration(seconds=int(ATTACK_SECONDS_MAX))
    execution = await client.start(long, timeout=timeout)
    watched = executions_pb2.WatchExecutionRequest(execution_id=execution.id)
    options: dict[str, Any] = {"metadata": metadata, "timeout": ATTACK_SECONDS_MAX}
    watches = [client.executions.WatchExecution(watched, **options) for _ in range(WATCHES)]
    for watch in watches:
        await watch.read()
    request = executions_pb2.StartExecutionRequest(workflow=long, timeout=timeout)
    request.wait.FromSeconds(60)
    starts = [client.executions.StartExecution(request, **options) for _ in range(WAITING_STARTS)]

    async def all_wait() -> bool:
        find = "SELECT count(*) FROM coordinator.executions WHERE workflow = %s"
        ((count,),) = await arena.stack.rows(find, long)
        return bool(count == 1 + WAITING_STARTS)

    await eventually(all_wait, ATTACK_SECONDS_MAX, "the starts to wait")
    await close()

    async def code(call: Any) -> grpc.StatusCode:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while call in watches and await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()  # type: ignore[no-any-return]

    ends = [asyncio.create_task(code(call)) for call in (*watches, *starts)]
    # The engine itself measures the term. It begins after the end of the key.
    assert (await arena.hostile.run("term")).state == Execution.SUCCESS
    assert all(end.done() for end in ends)
    assert {end.result() for end in ends} == {grpc.StatusCode.UNAUTHENTICATED}


async def brings_two_keys(arena: Arena) -> None:
    """It is let in with one key, and hopes that another one is looked at from then on."""
    await arena.hostile.apply("noop", [{"id": "a", "module": "noop@1"}])
    execution = await arena.hostile.run("noop")
    (_, one), (_, other) = [await arena.key(workspaces_pb2.VIEWER) for _ in range(2)]
    request = executions_pb2.WatchExecutionRequest(execution_id=execution.id)
    for two in (one + other, other + one, one + one, one + arena.quiet.metadata, arena.quiet.metadata + one):
        watch = arena.hostile.executions.WatchExecution(request, metadata=two, timeout=ATTACK_SECONDS_MAX)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watch.read()
        assert remote_error(refused.value).reason == "KEY_INVALID"


async def asks_for_what_services_call(arena: Arena) -> None:
    """It asks every process to describe what only the services call among themselves."""
    rules = {**API_RULES, **DISPATCHER_RULES, **COORDINATOR_RULES}
    served = {method.split("/")[1] for method in rules}
    internal = served - {method.split("/")[1] for method, rule in rules.items() if not rule.is_only_for_services}
    assert "windlass.catalog.v1.CatalogService" in internal
    for process in SERVICES:
        call = arena.stack.channel(process).stream_stream(
            f"/{V1}/{METHOD}",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(timeout=ATTACK_SECONDS_MAX)
        for service in internal:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
            answer: Any = await call.read()
            assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], (process, service)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        listed = {each.name for each in answer.list_services_response.service}
        assert not listed.intersection(internal), process
        await call.done_writing()


async def attaches_as_another_runner(arena: Arena) -> None:
    """It attaches under the instance of the stack's own runner, with a key that may attach runners."""
    _, metadata = await arena.key(workspaces_pb2.RUNNER)
    target = sessions.HOPS["coordinator"].on(arena.stack)._replace(metadata=metadata)
    # A runner of its own may have been there a moment ago.
    find = f"SELECT instance_id FROM {target.hop.table} WHERE state = 'LIVE' AND holder LIKE 'runner-0@%%'"
    ((instance_id,),) = await arena.stack.rows(find)
    for _ in range(ATTACHES):
        async with sessions.session(target, ATTACK_SECONDS_MAX) as stranger:
            await stranger.say(sessions.attach_of(target.hop, instance_id))
            assert await stranger.fault() == "INSTANCE_ENDED"
    assert await arena.stack.rows(find) == [(instance_id,)]
