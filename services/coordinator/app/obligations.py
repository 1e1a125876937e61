"""Does what executions owe to others, after the commit that made it owed: starts children, cancels them, tells parents
of an end, and only then reports the end to the dispatcher.

Each thing is done at least once, in the order in which it came to be owed; things of one kind are done together. The
journal keeps what is not acknowledged, so a crash at any point loses nothing: the next holder does it again, and the
receiver recognises the repetition.

Hazards: a child whose parent is not told would be waited for without end. So the report that ends the lease comes last,
and until then the execution stays with its holder or is granted to another. A full queue or a full mailbox may need the
slot that this execution has. So it gives the slot back for a while, if it only waits or is final.
"""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import Final, assert_never

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
from services.chassis.telemetry.tracing import emit_span
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Children, Dispatch, MailboxFull, QueueFull, Relatives, StartRefused
from services.coordinator.app.trace_segments import child_context, segment_of, segment_root
from services.coordinator.core.commands import Command, NoteChildCancelTold, NoteChildStarted, RefuseChild
from services.coordinator.core.state import (
    CancelChild,
    ChildExecution,
    Obligation,
    ReportFinished,
    StartChild,
    TellParent,
)

log = logger(__name__)

# Calls that are under way for one execution, and for all.
_TOGETHER_MAX: Final = 50
_CALLS_MAX: Final = 200
# When a queue or a mailbox is full, it is tried again after this time. Multiplied by the lease scale.
REST_SECONDS: Final = 5.0

_children = counter("coordinator_children_total", "Starts of children, by their result.", ["result"])


class ObligationKeeper:
    def __init__(
        self,
        *,
        executions: OwnedExecutions,
        children: Children,
        relatives: Relatives,
        dispatch: Dispatch,
        clock: Clock,
        rest_seconds: float,
    ) -> None:
        self._executions = executions
        self._children = children
        self._relatives = relatives
        self._dispatch = dispatch
        self._clock = clock
        self._rest_seconds = rest_seconds
        # The executions that owe something, and those of them that no task looks after yet.
        self._owing: set[OwnedExecution] = set()
        self._new: list[OwnedExecution] = []
        self._level = Level()
        self._calls = asyncio.Semaphore(_CALLS_MAX)

    def owe(self, owned: OwnedExecution, obligation: Obligation) -> None:
        owned.owed.append(obligation)
        if owned not in self._owing:
            self._owing.add(owned)
            self._new.append(owned)
            self._level.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._level.wait()
                new, self._new = self._new, []
                for owned in new:
                    group.create_task(self._keep(owned))

    async def _keep(self, owned: OwnedExecution) -> None:
        backoff = Backoff()
        try:
            while owned.owed and not owned.is_dropped:
                if await self._do_next(owned):
                    backoff.reset()
                elif owned.rest_until:
                    self._executions.look_again(owned)
                    await self._clock.sleep(self._rest_seconds)
                    owned.rest_until = 0
                else:
                    await self._clock.sleep(backoff.next())
        except Exception:
            log.exception("an obligation cannot be kept", execution_id=owned.execution_id)
            if not owned.is_dropped:
                self._executions.return_lease(owned, "INTERNAL", "the coordinator failed; its log says why")
        finally:
            self._owing.discard(owned)

    async def _do_next(self, owned: OwnedExecution) -> bool:
        """Does the first thing that is owed, and those after it that are of the same kind. False: some are left."""
        kind = type(owned.owed[0])
        together = [*takewhile(lambda each: type(each) is kind, owned.owed[:_TOGETHER_MAX])]
        are_done = await asyncio.gather(*(self._do(owned, each) for each in together))
        left = [each for each, is_done in zip(together, are_done, strict=True) if not is_done]
        owned.owed[: len(together)] = left
        return not left

    async def _do(self, owned: OwnedExecution, obligation: Obligation) -> bool:
        async with self._calls:
            if owned.is_dropped:
                return True
            try:
                return await self._try(owned, obligation)
            except DependencyUnavailable as failure:
                log.warning("an obligation must wait", execution_id=owned.execution_id, error=str(failure))
            except (MailboxFull, QueueFull) as failure:
                log.info("an obligation waits for room", execution_id=owned.execution_id, error=repr(failure))
                owned.rest_until = self._clock.epoch_ns() // 1_000 + round(self._rest_seconds * 1e6)
            return False

    async def _try(self, owned: OwnedExecution, obligation: Obligation) -> bool:
        execution = owned.execution
        assert execution is not None
        match obligation:
            case TellParent() | ReportFinished() if not execution.is_final:
                # A person has reopened it meanwhile.
                pass
            case StartChild():
                return await self._start(owned, obligation.child)
            case CancelChild():
                crash_point("coordinator.cancel_child.before")
                await self._relatives.cancel_child(execution, obligation.execution_id)
                crash_point("coordinator.cancel_child.after")
                self._put(owned, NoteChildCancelTold(obligation.execution_id))
            case TellParent():
                crash_point("coordinator.tell_parent.before")
                await self._relatives.tell_parent(execution)
                crash_point("coordinator.tell_parent.after")
            case ReportFinished():
                self._dispatch.finished(owned.execution_id, owned.epoch)
                self._executions.drop(owned)
            case _:
                assert_never(obligation)
        return True

    async def _start(self, owned: OwnedExecution, child: ChildExecution) -> bool:
        execution = owned.execution
        assert execution is not None
        began = self._clock.epoch_ns()
        context = child_context(owned.trace, child) if owned.trace is not None else None
        traceparent = context.header() if context is not None else owned.start.origin.traceparent
        crash_point("coordinator.start_child.before")
        try:
            await self._children.start(execution, child, traceparent)
        except StartRefused as refused:
            _children.labels("refused").inc()
            self._put(owned, RefuseChild(child.execution_id, refused.reason, refused.message))
            return True
        except QueueFull as full:
            _children.labels("queue full").inc()
            if child.execution_id in execution.children or not child.is_cancelled_with_parent:
                raise
            # It would be started only to be cancelled.
            self._put(owned, RefuseChild(child.execution_id, "QUEUE_FULL", str(full)))
            return True
        crash_point("coordinator.start_child.after")
        _children.labels("queued").inc()
        self._put(owned, NoteChildStarted(child.execution_id))
        if context is not None and owned.trace is not None:
            attributes = {
                "execution.id": owned.execution_id,
                "child.execution.id": child.execution_id,
                "workflow": child.workflow,
            }
            parent = segment_root(owned.trace, segment_of(child.run))
            end = self._clock.epoch_ns()
            emit_span(
                "coordinator.start_child", context, parent=parent, start_ns=began, end_ns=end, attributes=attributes
            )
        return True

    def _put(self, owned: OwnedExecution, command: Command) -> None:
        if not owned.is_dropped:
            self._executions.put(owned, command)
