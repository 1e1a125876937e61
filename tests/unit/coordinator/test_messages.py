"""Messages of the mailbox come again and again until they are answered, and are put into the inbox once."""

from types import SimpleNamespace
from typing import Any, cast

from services.chassis.process.clock import SystemClock
from services.coordinator.app.owned_execution import OwnedExecution, ReceivedMessage
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Version
from services.coordinator.core.commands import Adopt, Cancel, Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.peers.dispatch import granted_execution, received_message
from services.coordinator.rpc.run_messages import forwarded_command
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant, ExecutionMessage

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
NODES = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}
VERSION = Version(compile_definition(NODES), EffectKeys(b"s" * 32))
ADOPT = Adopt(1, "c", ())


def executions() -> OwnedExecutions:
    return OwnedExecutions(
        clock=SystemClock(),
        definitions=cast("Any", SimpleNamespace(cached=lambda version_id: None)),
        dispatch=cast("Any", None),
        forward=cast("Any", None),
        mailbox_seconds=0.0,
    )


def sent(message_id: str) -> ExecutionMessage:
    message = ExecutionMessage(message_id=message_id, execution_id=ID)
    message.cancel.reason = "enough"
    return message


def message(message_id: str) -> ReceivedMessage:
    return received_message(sent(message_id), forwarded_command)


def granted(carries: OwnedExecutions, *message_ids: str) -> OwnedExecution:
    grant = ExecutionGrant(messages=[sent(each) for each in message_ids])
    grant.lease.lease_id, grant.lease.epoch = ID, 1
    grant.start.execution_id = ID
    carries.take_on([granted_execution(grant, "c1", forwarded_command)])
    owned = carries.by_id[ID]
    owned.version = VERSION
    return owned


def waiting(owned: OwnedExecution) -> list[str]:
    return [each.command.message_id for each in owned.inbox if isinstance(each.command, Cancel)]


def test_message_that_is_said_again_while_its_execution_is_loaded_waits_once() -> None:
    carries = executions()
    owned = granted(carries)
    for _ in range(3):
        carries.deliver([message("m1"), message("m2")])
    carries.deliver([message("m3")])
    assert waiting(owned) == ["m1", "m2", "m3"]


def test_message_of_the_grant_that_is_said_again_is_decided_once_and_in_its_place() -> None:
    carries = executions()
    owned = granted(carries, "m1", "m2")
    carries.deliver([message("m3"), message("m2"), message("m1")])
    carries.resume(owned, ADOPT)
    carries.deliver([message("m1")])
    assert owned.inbox[0].command == ADOPT
    assert waiting(owned) == ["m1", "m2", "m3"]


def test_message_of_the_grant_is_decided_once_by_a_start_that_turns_out_to_be_none() -> None:
    carries = executions()
    owned = granted(carries, "m1")
    carries.begin(owned)
    assert isinstance(owned.inbox[0].command, Start)
    # A batch whose append is refused, because the journal has begun, does the same.
    owned.inbox = owned.inbox[1:]
    carries.reload(owned)
    carries.resume(owned, ADOPT)
    assert waiting(owned) == ["m1"]
