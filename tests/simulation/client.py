"""The one client of a simulated world. It takes the place of an api: it keeps starts and cancels until they are
answered, and gives coordinators the definitions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

import grpc

from tests.simulation.network import Channels, Server
from tests.simulation.processes import SimulatedCatalog, address_of
from tests.simulation.workloads import GO, PlannedStart, Sending, uuid7
from windlass.catalog.v1 import catalog_pb2_grpc, children_pb2, children_pb2_grpc
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.dispatcher.v1 import queue_pb2 as pb
from windlass.dispatcher.v1.queue_pb2_grpc import EnqueueServiceStub, QueueServiceStub
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage
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
        # The executions for which a cancel was sent. It may have been accepted although no answer came.
        self.cancelled: set[str] = set()
        self._orders: dict[str, StartOrder] = {}
        self.children: set[str] = set()
        # The forks that were accepted, with the versions that they have.
        self.forks: dict[str, str] = {}
        # What people have yet to send.
        self.sendings_open = 0

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
        for execution_id in (start.execution_id, *start.repeats):
            self._unanswered[execution_id] = self._item(start, execution_id)
            self._wake.set()
            await world.clock.sleep(world.random.choice([0.0, 0.1, 1.0]))
        await self._send_all(start.execution_id, start.workspace, start.sendings)

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
            world.loop.spawn_as(world.client_host, self._send_all(id_, order.workspace, sendings))

    # ── what people send ─────────────────────────────────────────────────────────────────────────────────────────

    async def _send_all(self, execution_id: str, workspace: str, sendings: Sequence[tuple[float, Sending]]) -> None:
        world = self._world
        self.sendings_open += len(sendings)
        while execution_id not in self.answers:
            await world.clock.sleep(0.05)
        outcome, existing = self.answers[execution_id]
        id_ = existing if outcome == EXISTING else execution_id
        for number, (after, sending) in enumerate(sendings):
            await world.clock.sleep(after)
            if sending is Sending.APPROVE:
                await self._approve(id_, workspace)
            elif sending is Sending.COMPLETE:
                await self._complete(id_, workspace)
            elif sending is Sending.RETRY:
                await self._retry(id_, workspace)
            elif sending is Sending.FORK:
                await self._fork(id_, workspace)
            else:
                await self._deliver(self._message(sending, id_, f"{sending.value}:{id_}:{number}"), workspace)
            self.sendings_open -= 1

    async def _fork(self, origin_id: str, workspace: str) -> None:
        """As api does it: the order names the origin and its newest event. Sometimes it is asked for twice."""
        world = self._world
        origin, seq = self._orders[origin_id], world.invariants.seq_of(origin_id)
        for _ in range(world.random.choice([1, 1, 2])):
            item = pb.EnqueueItem(request_hash=b"f" * 32, limits=world.limits[workspace])
            order = item.start
            order.CopyFrom(origin)
            order.ClearField("deadline_time")
            order.create_time.FromDatetime(world.clock.now())
            order.execution_id = fork_id = uuid7(world.random, world.loop.time())
            order.request_id = f"fork:{origin_id}"
            order.origin_execution_id, order.origin_seq = origin_id, seq
            self._orders[fork_id], self._unanswered[fork_id] = order, item
            self._wake.set()
            while fork_id not in self.answers:
                await world.clock.sleep(0.05)
            outcome, existing = self.answers[fork_id]
            kept_id = existing if outcome == EXISTING else fork_id
            is_new = kept_id not in self.forks
            self.forks[kept_id] = order.version_id
            if is_new:
                sendings = [(0.5, each) for each in world.workloads[order.version_id].sendings]
                world.loop.spawn_as(world.client_host, self._send_all(kept_id, workspace, sendings))

    async def _approve(self, execution_id: str, workspace: str) -> None:
        world = self._world
        while not world.invariants.is_final(execution_id):
            for (id_, number), approval in list(world.journal.approvals.items()):
                if id_ == execution_id and approval["state"] == "PENDING":
                    message_id = f"approve:{id_}:{number}"
                    message = self._message(Sending.APPROVE, id_, message_id, run=number)
                    await self._deliver(message, workspace)
            await world.clock.sleep(0.3)

    async def _complete(self, execution_id: str, workspace: str) -> None:
        """What a module has deferred, as the one to whom it gave the token."""
        world = self._world
        while not world.invariants.is_final(execution_id):
            for number in world.invariants.deferred_runs(execution_id):
                message_id = f"complete:{execution_id}:{number}"
                message = self._message(Sending.COMPLETE, execution_id, message_id, run=number)
                await self._deliver(message, workspace)
            await world.clock.sleep(0.3)

    async def _retry(self, execution_id: str, workspace: str) -> None:
        world, number = self._world, 0
        while (state := world.invariants.final_state(execution_id)) in ("", "FAILED"):
            if state:
                number += 1
                message = self._message(Sending.RETRY, execution_id, f"retry:{execution_id}:{number}")
                await self._deliver(message, workspace, self._orders[execution_id])
            await world.clock.sleep(0.5)

    def _message(self, sending: Sending, execution_id: str, message_id: str, *, run: int = 0) -> ExecutionMessage:
        message = ExecutionMessage(message_id=message_id, execution_id=execution_id)
        message.create_time.FromDatetime(self._world.clock.now())
        if sending is Sending.CANCEL:
            self.cancelled.add(execution_id)
            message.cancel.reason = "no longer wanted"
            return message
        command = ExecutionCommand(message_id=message_id, caller="somebody")
        command.time.FromDatetime(self._world.clock.now())
        match sending:
            case Sending.PAUSE:
                command.pause.reason = "to look at it"
            case Sending.RESUME:
                command.resume.SetInParent()
            case Sending.SIGNAL:
                command.signal.signal, command.signal.payload = GO, b"{}"
            case Sending.APPROVE:
                decide = command.decide_approval
                decide.run, decide.key_id, decide.role, decide.approves, decide.form = run, "key", "ADMIN", True, b"{}"
            case Sending.COMPLETE:
                command.complete_run.run, command.complete_run.output = run, b"{}"
            case Sending.RETRY:
                command.retry.SetInParent()
            case Sending.FORK:
                raise AssertionError("a fork is a start, and no message")
            case _:
                assert_never(sending)
        message.command = command.SerializeToString()
        return message

    async def _deliver(self, message: ExecutionMessage, workspace: str, start: StartOrder | None = None) -> None:
        """Send it until there is an answer, and sometimes once more. With a start it may reopen the execution."""
        request = pb.DeliverRequest(message=message, workspace=workspace, start=start)
        left = self._world.random.choice([1, 1, 2])
        for name in itertools.cycle(self._world.names("dispatcher")):
            try:
                await QueueServiceStub(self._channels.get(address_of(name))).Deliver(request)
            except grpc.aio.AioRpcError:
                await self._world.clock.sleep(0.2)
                continue
            left -= 1
            if not left:
                return


class _ChildServicer(children_pb2_grpc.ChildServiceServicer):
    def __init__(self, client: Client) -> None:
        self._client = client

    async def StartChild(self, request: Any, context: Any) -> Any:
        await self._client.start_child(request.order)
        return children_pb2.StartChildResponse()
