"""Actions of a client or an operator that make a service pass a named crash point."""

import asyncio
import contextlib
import itertools
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

from tests.chaos.load import CALL_SECONDS, HastyClient, Load
from tests.chaos.one_dispatcher import OneDispatcher, newest
from tests.support.pace import pause
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub, WorkspaceServiceStub
from windlass.dispatcher.v1.queue_pb2 import EnqueueItem

# This workflow of the mixed load ends as soon as it has begun.
QUICK = "chaos-branch"
# It sleeps for long enough (10 s and more) to be parked.
NAP, NAP_DURATION = "chaos-nap", "12s"
# As this one, for jobs that cancel many.
CROWD = "chaos-crowd"
# It is never parked, so a coordinator holds it until its end.
DOZE, DOZE_DURATION = "chaos-doze", "3s"
# Parents: of a child that ends at once, and of one that sleeps.
FAMILY, PATIENT = "chaos-family", "chaos-patient"
# If this number is started at once, each coordinator holds some.
DOZES = 4
# The pause between two deaths that only bring another service to its point.
SETTLE_SECONDS = 1.5


class Stimuli:
    """An action for each point and the replica that is to pass it; the mixed load itself reaches the other points."""

    def __init__(self, stack: Stack, load: Load) -> None:
        self._stack = stack
        self._load = load
        self._numbers = itertools.count(1)
        self._channels = [stack.channel("api", each["replica"]) for each in stack.entries("api")]
        self._clients = [HastyClient(stack, channel=channel) for channel in self._channels]
        self._operators = [HastyClient(stack, stack.key("system"), channel) for channel in self._channels]
        self._dispatchers: dict[int, OneDispatcher] = {}
        # The start that is sent to one dispatcher, by workflow.
        self._items: dict[str, EnqueueItem] = {}

    async def prepare(self) -> None:
        """Await this before anything dies."""
        await self._apply_sleeper(DOZE, DOZE_DURATION)
        self._items = {name: await newest(self._stack, name) for name in (QUICK, DOZE)}

    def of(self, service: str, point: str, replica: int) -> Callable[[], Awaitable[None]]:
        known: dict[str, Callable[[], Awaitable[None]]] = {
            "api.start_child": self.families,
            "api.start": partial(self.start_by, replica),
            "api.cancel": partial(self.cancel_by, replica),
            "api.command": partial(self.pause_by, replica),
            "api.bulk": partial(self.cancel_many_by, replica),
            "api.fork": partial(self.fork_by, replica),
            "api.workflow": partial(self.apply_by, replica),
            "api.workspace": self.workspaces_everywhere,
            "api.key": partial(self.keys_by, replica),
            "dispatcher.hand_back": partial(self.hand_back_to, replica),
            "dispatcher.end": partial(self.end_a_coordinator, signal.SIGKILL),
            "dispatcher.fail": partial(self.start_what_nobody_can_run_at, replica),
            # The row of a dead letter keeps whether a parent has to be told of it.
            "dispatcher.note_told": partial(self.start_what_nobody_can_run_at, replica),
            "dispatcher.configure": self.workspaces_everywhere,
            "dispatcher.deliver": partial(self.cancel_at, replica),
            "dispatcher.forget": partial(self.cancel_at, replica),
            "dispatcher.keep_open": partial(self.retry_at, replica),
            "dispatcher.requeue": partial(self.resolve_at, replica, is_requeue=True),
            "dispatcher.discard": partial(self.resolve_at, replica, is_requeue=False),
            "dispatcher.wake": self.nap,
            # Only an execution that goes on for a while is marked.
            "dispatcher.mark": partial(self.doze_at, replica),
            "dispatcher.note_begun": partial(self.doze_at, replica),
            # A dispatcher passes all other points when it stores and grants an execution and hears of its end.
            "dispatcher": partial(self.start_at, replica),
            "coordinator.start_child": self.families,
            "coordinator.tell_parent": self.families,
            "coordinator.cancel_child": self.cancel_a_parent,
            "coordinator.parked": self.nap,
            # When it wakes, it is granted to a coordinator that has to read it.
            "coordinator.take_over": self.nap,
            "coordinator.released": partial(self.start_what_nobody_can_run_at, 0),
            "session.end": self.end_a_runner
            if service == "coordinator"
            else partial(self.end_a_coordinator, signal.SIGKILL),
            "runner": self.crowd,
        }
        return next((do for start, do in known.items() if point.startswith(start)), self._nothing)

    async def _nothing(self) -> None:
        """The load does it."""

    async def start_by(self, replica: int) -> None:
        await self._clients[replica].start(QUICK, request_id=uuid.uuid4().hex, input={"n": 42})

    async def crowd(self) -> None:
        """Start more than the other runners can take at once, so that the runner that has just come back gets some."""
        names = ["chaos-slow"] * 18 + ["chaos-large"] * 8
        await asyncio.gather(*map(self._load.start, names))
        await pause(SETTLE_SECONDS)

    async def cancel_by(self, replica: int) -> None:
        await self._clients[replica].cancel(await self._sleeping(NAP, NAP_DURATION))

    async def fork_by(self, replica: int) -> None:
        client, origin = self._clients[replica], await self._sleeping(DOZE, DOZE_DURATION)
        request = executions_pb2.ForkExecutionRequest(execution_id=origin, request_id=uuid.uuid4().hex)
        await client.call(client.executions.ForkExecution, request)

    async def pause_by(self, replica: int) -> None:
        client, execution_id = self._clients[replica], await self._sleeping(NAP, NAP_DURATION)
        request = executions_pb2.PauseExecutionRequest(execution_id=execution_id)
        await client.call(client.executions.PauseExecution, request)
        await client.cancel(execution_id)

    async def cancel_many_by(self, replica: int) -> None:
        """Any api may take the job. So the one that is to die takes one sooner or later."""
        await self._apply_sleeper(CROWD, NAP_DURATION)
        client = self._clients[replica]
        await client.start(CROWD, request_id=uuid.uuid4().hex)
        filter_ = f'workflow = "{CROWD}" AND NOT state = CANCELLED'
        request = executions_pb2.BulkExecutionsRequest(filter=filter_, action=resources_pb2.BulkJob.CANCEL)
        await client.call(client.executions.BulkExecutions, request)

    async def nap(self) -> None:
        await self._sleeping(NAP, NAP_DURATION)

    async def families(self) -> None:
        """Start enough parents, each with a child, for every coordinator and every api to have a part in it."""
        await self._load.client.apply(FAMILY, [_child_of(QUICK, {"n": 42})])
        for _ in range(DOZES):
            await self._load.client.start(FAMILY, request_id=uuid.uuid4().hex)

    async def cancel_a_parent(self) -> None:
        await self._apply_sleeper(NAP, NAP_DURATION)
        await self._load.client.apply(PATIENT, [_child_of(NAP, {})])
        for _ in range(DOZES):
            parent = await self._load.client.start(PATIENT, request_id=uuid.uuid4().hex)
            await self._load.client.cancel(parent.id)

    async def apply_by(self, replica: int) -> None:
        nodes = [{"id": f"n{next(self._numbers)}", "module": "noop@1"}]
        await self._clients[replica].apply("chaos-other", nodes)

    async def workspaces_everywhere(self) -> None:
        for channel, operator in zip(self._channels, self._operators, strict=True):
            name = f"w{next(self._numbers)}"
            workspaces = WorkspaceServiceStub(channel)
            made = workspaces_pb2.CreateWorkspaceRequest(workspace=name, tier=workspaces_pb2.PRO)
            await operator.call(workspaces.CreateWorkspace, made)
            await operator.call(workspaces.DeleteWorkspace, workspaces_pb2.DeleteWorkspaceRequest(workspace=name))

    async def keys_by(self, replica: int) -> None:
        request = workspaces_pb2.CreateApiKeyRequest(role=workspaces_pb2.VIEWER, title="chaos")
        await self._clients[replica].call(ApiKeyServiceStub(self._channels[replica]).CreateApiKey, request)

    async def end_a_coordinator(self, how: signal.Signals) -> None:
        """Each dispatcher has a stream to it, and each takes back the executions that it held."""
        ready = [each for each in self._stack.entries("coordinator") if each["ready"]]
        if ready:
            await self._sleeping(NAP, NAP_DURATION)
            with contextlib.suppress(ProcessLookupError):  # another stimulus was quicker
                os.kill(ready[next(self._numbers) % len(ready)]["pid"], how)
        await pause(SETTLE_SECONDS)

    async def end_a_runner(self) -> None:
        """Each coordinator has a stream to it. It is stopped by SIGTERM, so that its work does not count as poison."""
        ready = [each for each in self._stack.entries("runner") if each["ready"]]
        if ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(ready[next(self._numbers) % len(ready)]["pid"], signal.SIGTERM)
        await pause(SETTLE_SECONDS)

    async def start_at(self, replica: int) -> None:
        await self._dispatcher(replica).start(self._items[QUICK])

    async def doze_at(self, replica: int) -> None:
        await self._dispatcher(replica).start(self._items[DOZE])

    async def start_what_nobody_can_run_at(self, replica: int) -> None:
        """Its definition does not exist. No client can cause this, and such an execution must not stay in the queue."""
        item = EnqueueItem()
        item.CopyFrom(self._items[QUICK])
        item.start.version_id = str(uuid.uuid4())
        await self._dispatcher(replica).start(item)

    async def cancel_at(self, replica: int) -> None:
        """This dispatcher grants the execution, so the holder acknowledges the message to it."""
        dispatcher = self._dispatcher(replica)
        await dispatcher.cancel(await dispatcher.start(self._items[DOZE]))

    async def retry_at(self, replica: int) -> None:
        """The message comes to a holder, so the row outlives the end of the execution."""
        dispatcher = self._dispatcher(replica)
        await dispatcher.retry(await dispatcher.start(self._items[DOZE]), self._items[DOZE])

    async def resolve_at(self, replica: int, *, is_requeue: bool) -> None:
        await self._dispatcher(replica).resolve_failed(self._items[QUICK] if is_requeue else None)

    async def hand_back_to(self, replica: int) -> None:
        """A coordinator that drains gives executions back to the dispatcher that granted them."""
        for _ in range(DOZES):
            await self._dispatcher(replica).start(self._items[DOZE])
        await self.end_a_coordinator(signal.SIGTERM)

    def _dispatcher(self, replica: int) -> OneDispatcher:
        if replica not in self._dispatchers:
            self._dispatchers[replica] = OneDispatcher(self._stack, replica, CALL_SECONDS)
        return self._dispatchers[replica]

    async def _sleeping(self, workflow: str, duration: str) -> str:
        """Start an execution that does nothing but sleep."""
        await self._apply_sleeper(workflow, duration)
        return str((await self._load.client.start(workflow, request_id=uuid.uuid4().hex)).id)

    async def _apply_sleeper(self, workflow: str, duration: str) -> None:
        """The same content makes no new version."""
        await self._load.client.apply(workflow, [{"id": "nap", "module": "sleep@1", "config": {"duration": duration}}])


def _child_of(workflow: str, inputs: dict[str, int]) -> dict[str, object]:
    return {"id": "child", "module": "sub_workflow@1", "config": {"workflow": workflow}, "inputs": inputs}
