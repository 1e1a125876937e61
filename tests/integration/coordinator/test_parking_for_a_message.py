"""An execution that only waits for a message gives back its slot and its memory, and a message wakes it."""

from typing import Any

import pytest

from services.chassis.postgres.database import Database
from services.coordinator.core import handlers
from services.coordinator.core.commands import Cancel
from services.coordinator.core.controls import CONTROLS, end_wait
from services.coordinator.core.controls.control import Control
from services.coordinator.core.events import WaitEnded, WaitKind, WaitOutcome
from services.coordinator.core.handlers.stopping import cancel
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import ExecutionState
from tests.integration.coordinator.test_broken_executions import reports_of
from tests.support.coordinator_stage import Stage, eventually
from tests.support.journals import stored_events
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage


class WaitForMessage(Control):
    """No time ends this wait."""

    module = "wait_for_message@1"
    has_config = False

    def begin(self, turn: Turn, work: Work) -> None:
        turn.wait(work, WaitKind.SIGNAL)

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        turn.succeed(work, f'"{end.outcome}"'.encode())


def message_arrived(turn: Turn, command: Cancel) -> None:
    """A handler of messages will end waits in this way. No message does yet, so this one takes the place of another."""
    for wait in list(turn.execution.waits.values()):
        end_wait(turn, wait.work, WaitOutcome.ARRIVED)


@pytest.mark.parametrize(
    ("handler", "events", "end"),
    [
        (message_arrived, ["WaitEnded", "RunSucceeded"], (ExecutionState.SUCCESS, b'{"wait":"ARRIVED"}')),
        (cancel, ["StopOrdered", "RunCancelled"], (ExecutionState.CANCELLED, None)),
    ],
)
async def test_an_execution_that_waits_for_a_message_alone_is_parked_and_wakes(
    on_stage: Stage,
    tables: Database,
    monkeypatch: pytest.MonkeyPatch,
    handler: object,
    events: list[str],
    end: tuple[ExecutionState, bytes | None],
) -> None:
    monkeypatch.setitem(CONTROLS, WaitForMessage.module, WaitForMessage())
    monkeypatch.setattr(handlers, "HANDLERS", {**handlers.HANDLERS, Cancel: handler})
    waits = {"id": "wait", "module": WaitForMessage.module}
    version = on_stage.catalog.add("v-waits", name="w", nodes=[waits], edges=[])
    _, session = await on_stage.coordinator()
    order = on_stage.start(session, version)
    id_ = order.lease.lease_id
    await eventually(lambda: reports_of(on_stage, order, "parked"))
    (parked,) = reports_of(on_stage, order, "parked")
    assert not parked.HasField("wake_time"), "no time may wake it"

    _, successor = await on_stage.coordinator("1")
    again = on_stage.dispatcher.order(version, id_=id_, resumed=True)
    message = ExecutionMessage(message_id="m1", execution_id=id_)
    message.cancel.reason = "enough"
    again.messages.append(message)
    on_stage.dispatcher.grant(successor, [again])
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    journal: list[Any] = [stored.event for stored in await stored_events(tables, id_)]
    names = [type(event).__name__ for event in journal]
    assert names == ["ExecutionStarted", "WaitStarted", "ExecutionAdopted", *events, "ExecutionFinished"]
    assert (journal[-1].state, journal[-1].output) == end
