"""What people and outside systems send to the executions of a simulated world, in place of an api: commands, decisions,
outcomes. Each is sent until it is answered, and sometimes once more."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.api.app.identifiers import digest_of
from tests.simulation.channels import Channels
from tests.simulation.network import LATE_SECONDS
from tests.simulation.processes import address_of
from tests.simulation.workloads import GO, SLOW, Sending
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.dispatcher.v1 import queue_pb2 as pb
from windlass.dispatcher.v1.queue_pb2_grpc import QueueServiceStub
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage
from windlass.types.v1.start_pb2 import StartOrder

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.world import World

_LOOK_SECONDS: Final = 0.3
# What people decide about a dead letter. Those who argue decide in all ways at once.
_DECISIONS: Final = {
    Sending.REQUEUE: ("requeue",),
    Sending.FIX: ("mark_fixed",),
    Sending.DISCARD: ("discard",),
    Sending.ARGUE: ("requeue", "mark_fixed", "discard"),
}


class People:
    def __init__(self, world: World, client: Client, channels: Channels) -> None:
        self._world = world
        self._client = client
        self._channels = channels
        # The executions for which a cancel was sent. It may have been accepted although no answer came.
        self.cancelled: set[str] = set()
        # What they have yet to send.
        self.sendings_open = 0

    async def send_all(self, execution_id: str, workspace: str, sendings: Sequence[tuple[float, Sending]]) -> None:
        """One after the other, each so many seconds after the one before."""
        self.sendings_open += len(sendings)
        id_ = await self._client.kept_id(execution_id)
        for number, (after, sending) in enumerate(sendings):
            await self._world.clock.sleep(after)
            match sending:
                case Sending.APPROVE:
                    await self._approve(id_, workspace)
                case Sending.COMPLETE | Sending.STRUGGLE:
                    await self._finish_outside_work(id_, workspace, is_struggling=sending is Sending.STRUGGLE)
                case Sending.RETRY:
                    await self._retry(id_, workspace)
                case Sending.FORK:
                    await self._client.fork(id_, workspace)
                case Sending.QUARANTINE:
                    await self._quarantine(id_, workspace)
                case Sending.REQUEUE | Sending.FIX | Sending.DISCARD | Sending.ARGUE:
                    await self._decide(id_, workspace, _DECISIONS[sending])
                case Sending.REGRET:
                    await self._regret(id_, workspace)
                case Sending.LATE:
                    await self._come_late(id_, workspace)
                case Sending.CANCEL:
                    await self._cancel(id_, workspace)
                case _:
                    message_id = f"{sending.value}:{id_}:{number}"
                    await self._give(id_, workspace, message_id, **_PLAIN[sending])
            self.sendings_open -= 1

    async def _cancel(self, execution_id: str, workspace: str) -> None:
        self.cancelled.add(execution_id)
        message = self._message(execution_id, f"cancel:{execution_id}:theirs#{digest_of(b'')}")
        message.cancel.reason = "no longer wanted"
        await self._deliver(message, workspace)

    async def _regret(self, execution_id: str, workspace: str) -> None:
        """A cancel, and at once a retry. They may find the execution queued, under way or parked. It is retried until
        it ends otherwise, or everything in it was done when it was stopped. Meanwhile copies of the cancel come, which
        are late once it was reopened."""
        world, number = self._world, 0
        cancel = self._message(execution_id, f"cancel:{execution_id}:hasty#{digest_of(b'')}")
        cancel.cancel.reason = "in haste"
        await self._deliver(cancel, workspace)
        while (state := world.invariants.final_state(execution_id)) in ("", "CANCELLED"):
            if state and world.invariants.has_all_done(execution_id):
                self.cancelled.add(execution_id)
                return
            if state or not number:
                number += 1
                await self._give(execution_id, workspace, f"regret:{execution_id}:{number}", may_reopen=True, retry={})
            await self._deliver(cancel, workspace)
            await world.clock.sleep(0.5)

    async def _come_late(self, execution_id: str, workspace: str) -> None:
        """A cancel and a pause that somebody gives while the execution goes on. They come after its end, where no event
        answers them, and copies of them after it was reopened, which must go on."""
        world, number = self._world, 0
        if world.invariants.is_final(execution_id):
            return
        seen_seq = world.invariants.seq_of(execution_id)
        cancel = self._message(execution_id, f"cancel:{execution_id}:late", seen_seq)
        cancel.cancel.reason = "too late"
        pause = self._command(execution_id, f"pause:{execution_id}:late", {"pause": {"reason": "too late"}}, seen_seq)
        while not world.invariants.is_final(execution_id):
            await world.clock.sleep(0.05)
        end_seq, first = world.invariants.seq_of(execution_id), world.invariants.first_node(execution_id)
        while world.invariants.seq_of(execution_id) == end_seq or not world.invariants.is_final(execution_id):
            for copy in world.random.sample([cancel, pause], world.random.randint(0, 2)):
                await self._deliver(copy, workspace)
            if world.invariants.seq_of(execution_id) == end_seq:
                number += 1
                retry, id_ = {"from_node": first}, f"again:{execution_id}:{number}"
                await self._give(execution_id, workspace, id_, may_reopen=True, retry=retry)
            await world.clock.sleep(0.2)

    async def _approve(self, execution_id: str, workspace: str) -> None:
        world = self._world
        while not world.invariants.is_final(execution_id):
            for (id_, number), approval in list(world.journal.approvals.items()):
                if id_ == execution_id and approval["state"] == "PENDING":
                    decision = {"run": number, "key_id": "key", "role": "ADMIN", "approves": True, "form": b"{}"}
                    await self._give(id_, workspace, f"approve:{id_}:{number}", decide_approval=decision)
            await world.clock.sleep(_LOOK_SECONDS)

    async def _finish_outside_work(self, execution_id: str, workspace: str, *, is_struggling: bool) -> None:
        """What a module has deferred, as the one to whom it gave the token. Those who struggle say how far they are,
        and fail at first."""
        world = self._world
        while not world.invariants.is_final(execution_id):
            for place, number in enumerate(world.invariants.deferred_runs(execution_id)):
                done = {"run": number, "output": b"{}"}
                complete = (execution_id, workspace, f"complete:{execution_id}:{number}")
                if not is_struggling or place:
                    await self._give(*complete, complete_run=done)
                    continue
                beat = {"run": number, "progress": 0.5, "message": "half of it"}
                await self._give(execution_id, workspace, f"beat:{execution_id}:{number}", heartbeat_run=beat)
                failure = {"run": number, "type": "BROKEN", "message": "as told", "retryable": True}
                fail = self._give(execution_id, workspace, f"fail:{execution_id}:{number}", fail_run=failure)
                if world.random.random() < 0.7:
                    await fail
                else:
                    # Somebody else has done it at the same time.
                    await asyncio.gather(fail, self._give(*complete, complete_run=done))
            await world.clock.sleep(_LOOK_SECONDS)

    async def _retry(self, execution_id: str, workspace: str) -> None:
        world, number = self._world, 0
        while (state := world.invariants.final_state(execution_id)) in ("", "FAILED"):
            if state:
                number += 1
                await self._give(execution_id, workspace, f"retry:{execution_id}:{number}", may_reopen=True, retry={})
            await world.clock.sleep(0.5)

    async def _quarantine(self, execution_id: str, workspace: str) -> None:
        """The slow node is set aside as soon as it is seen. It may be over when the message comes. It is never seen if
        a fork takes it over, where another node may fail and wait for a decision."""
        world = self._world
        while not (world.invariants.is_final(execution_id) or world.invariants.open_letters(execution_id)):
            if number := world.invariants.live_run(execution_id, SLOW):
                return await self._give(
                    execution_id, workspace, f"quarantine:{execution_id}:{number}", quarantine={"run": number}
                )
            await world.clock.sleep(0.05)
        return None

    async def _decide(self, execution_id: str, workspace: str, kinds: Sequence[str]) -> None:
        """About each dead letter, until the execution has ended and none is open. A refused decision is sent anew."""
        world, was_over = self._world, False
        for attempt in itertools.count(1):
            letters = world.invariants.open_letters(execution_id)
            state = world.invariants.final_state(execution_id)
            is_over = bool(state and (state != "FAILED" or not letters))
            if is_over and was_over:
                return
            was_over = is_over
            if is_over:
                # A copy of a decision may arrive so late, and reopens an execution that was cancelled.
                await world.clock.sleep(LATE_SECONDS + _LOOK_SECONDS)
                continue
            for number in letters:
                give = []
                for kind in world.random.sample(kinds, len(kinds)):
                    output = {"output": b'{"execution": "%s"}' % execution_id.encode()} if kind == "mark_fixed" else {}
                    message_id = f"{kind}:{execution_id}:{number}:{attempt}"
                    command = {kind: {"run": number, **output}}
                    give.append(self._give(execution_id, workspace, message_id, may_reopen=True, **command))
                await asyncio.gather(*give)
            await world.clock.sleep(_LOOK_SECONDS)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _give(
        self, execution_id: str, workspace: str, message_id: str, *, may_reopen: bool = False, **kind: dict[str, Any]
    ) -> None:
        """Bring a command of this kind, with these fields, to the execution. The id names the request."""
        message = self._command(execution_id, message_id, kind)
        await self._deliver(message, workspace, self._client.order_of(execution_id) if may_reopen else None)

    def _command(
        self, execution_id: str, message_id: str, kind: dict[str, dict[str, Any]], seen_seq: int | None = None
    ) -> ExecutionMessage:
        command = ExecutionCommand(**kind)  # type: ignore[arg-type] # as named
        message_id = f"{message_id}#{digest_of(command.SerializeToString())}"
        command.message_id, command.caller = message_id, "somebody"
        command.time.FromDatetime(self._world.clock.now())
        message = self._message(execution_id, message_id, seen_seq)
        message.command = command.SerializeToString()
        return message

    def _message(self, execution_id: str, message_id: str, seen_seq: int | None = None) -> ExecutionMessage:
        message = ExecutionMessage(message_id=message_id, execution_id=execution_id, seen_seq=seen_seq)
        message.create_time.FromDatetime(self._world.clock.now())
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


# Commands that need nothing to be looked at.
_PLAIN: Final[dict[Sending, dict[str, Any]]] = {
    Sending.PAUSE: {"pause": {"reason": "to look at it"}},
    Sending.RESUME: {"resume": {}},
    Sending.SIGNAL: {"signal": {"signal": GO, "payload": b"{}"}},
}
