"""The one client of a simulated world. It takes the place of an api: it keeps starts until they are answered, starts
children and forks, and gives coordinators the definitions. people.py has what is sent to executions."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final

import grpc

from tests.simulation.channels import Channels
from tests.simulation.network import Server
from tests.simulation.people import People
from tests.simulation.processes import SimulatedCatalog, address_of
from tests.simulation.starts import PlannedStart, uuid7
from windlass.catalog.v1 import catalog_pb2_grpc, children_pb2, children_pb2_grpc
from windlass.dispatcher.v1 import queue_pb2 as pb
from windlass.dispatcher.v1.queue_pb2_grpc import EnqueueServiceStub
from windlass.types.v1.start_pb2 import StartOrder

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
        self._orders: dict[str, StartOrder] = {}
        self.children: set[str] = set()
        # The forks that were accepted, with the versions that they have.
        self.forks: dict[str, str] = {}
        self.people = People(world, self, self._channels)

    async def run(self) -> None:
        server: Any = Server(self._world.network, address_of(NAME))
        definitions = {id_: each.definition for id_, each in self._world.workloads.items()}
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(SimulatedCatalog(definitions), server)
        children_pb2_grpc.add_ChildServiceServicer_to_server(_ChildServicer(self), server)
        await server.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_stream())
            for start in self._world.starts:
                group.create_task(self._start(start))

    # ── starts ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _start(self, start: PlannedStart) -> None:
        world = self._world
        await world.clock.sleep(start.at)
        # The world is not over before people have begun to send, even if all starts are answered by then.
        self.people.sendings_open += 1
        for execution_id in (start.execution_id, *start.repeats):
            self._unanswered[execution_id] = self._item(start, execution_id)
            self._wake.set()
            await world.clock.sleep(world.random.choice([0.0, 0.1, 1.0]))
        await self.people.send_all(start.execution_id, start.workspace, start.sendings)
        self.people.sendings_open -= 1

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
        self._orders[execution_id] = order
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

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def start_child(self, order: StartOrder) -> None:
        """Returns when the child is queued, or was before."""
        world, id_ = self._world, order.execution_id
        version_id = next(each for each, it in world.workloads.items() if it.definition["name"] == order.workflow)
        item = pb.EnqueueItem(request_hash=b"h" * 32, limits=world.limits[order.workspace])
        item.start.CopyFrom(order)
        item.start.version_id, item.start.version = version_id, 1
        self._orders.setdefault(id_, item.start)
        if not item.start.HasField("create_time"):
            item.start.create_time.FromDatetime(world.clock.now())
        if id_ not in self.answers:
            self._unanswered.setdefault(id_, item)
            self._wake.set()
        while id_ not in self.answers:
            await world.clock.sleep(0.05)
        if id_ not in self.children:
            self.children.add(id_)
            sendings = [(0.5, each) for each in world.workloads[version_id].sendings]
            world.loop.spawn_as(world.client_host, self.people.send_all(id_, order.workspace, sendings))

    # ── what people send to ──────────────────────────────────────────────────────────────────────────────────────

    async def kept_id(self, execution_id: str) -> str:
        """The execution that the start with this id has made, once that is known."""
        while execution_id not in self.answers:
            await self._world.clock.sleep(0.05)
        outcome, existing = self.answers[execution_id]
        return existing if outcome == EXISTING else execution_id

    def order_of(self, execution_id: str) -> StartOrder:
        """What the execution was started with, for a message that may reopen it."""
        order = StartOrder()
        order.CopyFrom(self._orders[execution_id])
        order.ClearField("deadline_time")
        return order

    async def fork(self, origin_id: str, workspace: str) -> None:
        """As api does it: the order names the origin and its newest event. Sometimes it is asked for twice."""
        world = self._world
        seq = world.invariants.seq_of(origin_id)
        for _ in range(world.random.choice([1, 1, 2])):
            item = pb.EnqueueItem(request_hash=b"f" * 32, limits=world.limits[workspace])
            order = item.start
            order.CopyFrom(self.order_of(origin_id))
            order.create_time.FromDatetime(world.clock.now())
            order.execution_id = fork_id = uuid7(world.random, world.loop.time())
            order.request_id = f"fork:{origin_id}"
            order.origin_execution_id, order.origin_seq = origin_id, seq
            self._orders[fork_id], self._unanswered[fork_id] = order, item
            self._wake.set()
            kept_id = await self.kept_id(fork_id)
            is_new = kept_id not in self.forks
            self.forks[kept_id] = order.version_id
            if is_new:
                sendings = [(0.5, each) for each in world.workloads[order.version_id].sendings]
                world.loop.spawn_as(world.client_host, self.people.send_all(kept_id, workspace, sendings))


class _ChildServicer(children_pb2_grpc.ChildServiceServicer):
    def __init__(self, client: Client) -> None:
        self._client = client

    async def StartChild(self, request: Any, context: Any) -> Any:
        await self._client.start_child(request.order)
        return children_pb2.StartChildResponse()
