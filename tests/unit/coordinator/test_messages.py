"""Messages of the mailbox on their way into an inbox: they come again and again until they are answered."""

from typing import Any, cast

from services.chassis.process.clock import SystemClock
from services.coordinator.core.commands import Adopt, Cancel, Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.handler.carrier import Carrier
from services.coordinator.handler.effect_keys import EffectKeys
from services.coordinator.handler.held import Held
from services.coordinator.handler.ports import Version
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant, ExecutionMessage

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
NODES = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}
VERSION = Version(compile_definition(NODES), EffectKeys(b"s" * 32))
ADOPT = Adopt(1, "c", ())


class Loading:
    """Definitions and journals that do not come."""

    def cached(self, version_id: str) -> None:
        return None

    def add(self, held: Held) -> None: ...


def carrier() -> Carrier:
    return Carrier(
        holder="c1",
        clock=SystemClock(),
        definitions=cast("Any", Loading()),
        arrivals=cast("Any", Loading()),
        strays=cast("Any", None),
        mailbox_seconds=0.0,
    )


def message(message_id: str) -> ExecutionMessage:
    message = ExecutionMessage(message_id=message_id, execution_id=ID)
    message.cancel.reason = "enough"
    return message


def granted(carries: Carrier, *message_ids: str) -> Held:
    grant = ExecutionGrant(messages=[message(each) for each in message_ids])
    grant.lease.lease_id, grant.lease.epoch = ID, 1
    grant.start.execution_id = ID
    carries.take_on([grant])
    held = carries.held[ID]
    held.version = VERSION
    return held


def waiting(held: Held) -> list[str]:
    return [each.command.message_id for each in held.inbox if isinstance(each.command, Cancel)]


def test_message_that_is_said_again_while_its_execution_is_loaded_waits_once() -> None:
    carries = carrier()
    held = granted(carries)
    for _ in range(3):
        carries.deliver([message("m1"), message("m2")])
    carries.deliver([message("m3")])
    assert waiting(held) == ["m1", "m2", "m3"]


def test_message_of_the_grant_that_is_said_again_is_decided_once_and_in_its_place() -> None:
    carries = carrier()
    held = granted(carries, "m1", "m2")
    carries.deliver([message("m3"), message("m2"), message("m1")])
    carries.resume(held, ADOPT)
    carries.deliver([message("m1")])
    assert held.inbox[0].command == ADOPT
    assert waiting(held) == ["m1", "m2", "m3"]


def test_message_of_the_grant_is_decided_once_by_a_start_that_turns_out_to_be_none() -> None:
    carries = carrier()
    held = granted(carries, "m1")
    carries.begin(held)
    assert isinstance(held.inbox[0].command, Start)
    # As the turn does that finds its journal begun.
    held.inbox = held.inbox[1:]
    carries.reload(held)
    carries.resume(held, ADOPT)
    assert waiting(held) == ["m1"]
