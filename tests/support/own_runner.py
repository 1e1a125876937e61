"""A runner of one workspace on a running stack, which a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.coordinator_stage import StageRunner
from tests.support.live_sessions import live_sessions
from tests.support.probe import until
from tests.support.stack import Stack
from windlass.api.v1 import workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub


@asynccontextmanager
async def own_runner(
    stack: Stack, admin: Sequence[tuple[str, str]], *modules: str, **more: Any
) -> AsyncIterator[StageRunner]:
    """It has these modules, and is attached to every coordinator with a new key of the workspace of `admin`."""
    request = workspaces_pb2.CreateApiKeyRequest(role=workspaces_pb2.RUNNER, title="its own runner")
    made = await ApiKeyServiceStub(stack.channel()).CreateApiKey(request, metadata=admin)
    metadata = (("authorization", f"Bearer {made.key}"),)
    replicas = {
        stack.member("coordinator", each["replica"]).grpc: each["replica"] for each in stack.entries("coordinator")
    }
    runner = StageRunner(
        "its-own",
        lambda address: stack.channel("coordinator", replicas[address]),
        modules=modules,
        metadata=metadata,
        **more,
    )
    for address in replicas:
        runner.attach(address)
    serving = asyncio.create_task(runner.holder.run(runner.addresses.changes()))
    try:
        await until(lambda: live_sessions(runner.holder) == len(replicas), 90, "the runner to attach")
        yield runner
    finally:
        await runner.holder.stop()
        serving.cancel()
        await asyncio.wait([serving])
