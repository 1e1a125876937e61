"""The one client of a simulated world. It takes the place of an api: it keeps starts and cancels until they are
answered, and gives coordinators the definitions."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final

import grpc

from tests.simulation.network import Channels, Server
from tests.simulation.processes import SimulatedCatalog, address_of
from tests.simulation.workloads import PlannedStart
from windlass.catalog.v1 import catalog_pb2_grpc
from windlass.dispatcher.v1 import queue_pb2 as pb
from windlass.dispatcher.v1.queue_pb2_grpc import EnqueueServiceStub, QueueServiceStub
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

if TYPE_CHECKING:
    from tests.simulation.world import World

NAME: Final = "api-0"
QUEUED, EXISTING = pb.EnqueueAnswer.QUEUED, pb.EnqueueAnswer.EXISTING


class Client:
    def __init__(self, world: World) -> None:
        self._world = world
        self._channels = Channels(world.network)
        self._unanswered: dict[str, pb.EnqueueItem] = {}
        self._wake = asyncio.Event()
        # The outcome of each id that was answered, and the execution that it names instead.
        self.answers: dict[str, tuple[int, str]] = {}
        # The executions for which a cancel was sent. It may have been accepted although no answer came.
        self.cancelled: set[str] = set()
        self.cancels_open = 0

    async def run(self) -> None:
        server: Any = Server(self._world.network, address_of(NAME))
        definitions = {id_: each.definition for id_, each in self._world.workloads.items()}
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(SimulatedCatalog(definitions), server)
        await server.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_stream())
            for start in self._world.starts:
                group.create_task(self._start(start))

    # ── starts ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _start(self, start: PlannedStart) -> None:
        world = self._world
        await world.clock.sleep(start.at)
        for execution_id in (start.execution_id, *start.repeats):
            self._unanswered[execution_id] = self._item(start, execution_id)
            self._wake.set()
            await world.clock.sleep(world.random.choice([0.0, 0.1, 1.0]))
        if start.cancel_after is not None:
            self.cancels_open += 1
            await world.clock.sleep(start.cancel_after)
            while start.execution_id not in self.answers:
                await world.clock.sleep(0.05)
            outcome, existing = self.answers[start.execution_id]
            await self._cancel(start, existing if outcome == EXISTING else start.execution_id)
            self.cancels_open -= 1

    def _item(self, start: PlannedStart, execution_id: str) -> pb.EnqueueItem:
        world = self._world
        item = pb.EnqueueItem(request_hash=b"h" * 32, limits=world.limits[start.workspace])
        order = item.start
        order.execution_id, order.workspace, order.version_id = execution_id, start.workspace, start.version_id
        order.workflow, order.version = start.workload.definition["name"], 1
        order.input, order.priority, order.request_id = b"{}", start.priority, start.request_id
        order.create_time.FromDatetime(world.clock.now())
        if start.deadline is not None:
            order.deadline_time.FromNanoseconds(world.clock.epoch_ns() + round(start.deadline * 1e9))
        return item

    async def _keep_stream(self) -> None:
        """Send what is unanswered to one dispatcher after another, until each start has its answer."""
        for name in itertools.cycle(self._world.names("dispatcher")):
            call = EnqueueServiceStub(self._channels.get(address_of(name))).Enqueue()
            reader = asyncio.create_task(self._read(call))
            sent: set[str] = set()
            while not reader.done():
                new = [item for id_, item in self._unanswered.items() if id_ not in sent]
                sent.update(item.start.execution_id for item in new)
                try:
                    if new:
                        await call.write(pb.EnqueueRequest(items=new))
                except (asyncio.InvalidStateError, grpc.RpcError):
                    break
                self._wake.clear()
                waiter = asyncio.create_task(self._wake.wait())
                # A dispatcher that does not answer is left for another one.
                patience = 2.0 if self._unanswered else None
                done, _ = await asyncio.wait({reader, waiter}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
                if not done and sent & self._unanswered.keys():
                    break
            call.cancel()
            await asyncio.wait({reader})
            await self._world.clock.sleep(0.05)

    async def _read(self, call: Any) -> None:
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                for answer in response.answers:
                    self._answered(answer)
        except (grpc.RpcError, asyncio.CancelledError):
            return

    def _answered(self, answer: pb.EnqueueAnswer) -> None:
        id_, told = answer.execution_id, (int(answer.outcome), answer.existing_execution_id)
        self._unanswered.pop(id_, None)
        before = self.answers.setdefault(id_, told)
        if before != told:
            self._world.found(f"S5: the start of {id_} was answered with {before}, and then with {told}")

    # ── cancels ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _cancel(self, start: PlannedStart, execution_id: str) -> None:
        message = ExecutionMessage(message_id=f"cancel:{execution_id}", execution_id=execution_id)
        message.create_time.FromDatetime(self._world.clock.now())
        message.cancel.reason = "no longer wanted"
        request = pb.DeliverRequest(message=message, workspace=start.workspace)
        self.cancelled.add(execution_id)
        for name in itertools.cycle(self._world.names("dispatcher")):
            try:
                await QueueServiceStub(self._channels.get(address_of(name))).Deliver(request)
            except grpc.aio.AioRpcError:
                await self._world.clock.sleep(0.2)
                continue
            return
