"""A run whose grant came back, or is in doubt, is given up when that is safe. A message is put into the inbox once."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from services.chassis.identity.named_tokens import NamedTokens
from services.chassis.lease.frames import Grant, Refused
from services.chassis.process.clock import SystemClock
from services.coordinator.app.owned_execution import OwnedExecution, ReceivedMessage
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Version
from services.coordinator.core.commands import Adopt, Cancel, Command, Release, Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.values import ReleaseReason
from services.coordinator.peers.dispatch import granted_execution, received_message, start_command
from services.coordinator.rpc.run_messages import forwarded_command
from services.coordinator.rpc.runners import SessionRunners
from tests.support.story import EXECUTION_ID, Story, node, started
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant, ExecutionMessage

NODES = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}
VERSION = Version(compile_definition(NODES), EffectKeys(b"s" * 32), NamedTokens(b"s" * 32, "completion"))
ADOPT = Adopt(1, "c", ())


def executions(forward: Any = None) -> OwnedExecutions:
    """No definition is known here."""
    return OwnedExecutions(
        clock=SystemClock(),
        definitions=cast("Any", SimpleNamespace(cached=lambda version_id: None)),
        dispatch=cast("Any", None),
        forward=forward,
        mailbox_seconds=0.0,
    )


def executions_of(story: Story) -> OwnedExecutions:
    """They hold the execution of the story. A denied run is given up at once."""
    made = executions()
    made.by_id[EXECUTION_ID] = OwnedExecution(
        EXECUTION_ID, 1, start_command(ExecutionGrant(), "c1"), execution=story.execution
    )
    return made


def live_story() -> Story:
    """Run 1 must not be done twice. Run 2 may, because its node says so, and run 3, because its runner does."""
    story = started(node("once"), node("again", idempotent=True), node("anew"))
    story.assign("once", "again")
    story.assign("anew", is_idempotent=True)
    return story


def grants(story: Story) -> list[Grant]:
    return [Grant(f"{EXECUTION_ID}.{run.number}", run.epoch, None) for run in story.execution.live.values()]


async def put(executions: OwnedExecutions) -> list[Command]:
    """The commands in the inbox of its execution once all scheduled calls have run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [each.command for each in executions.by_id[EXECUTION_ID].inbox]


def given_up(story: Story, *numbers: int, may_have_begun: bool, instance_id: str = "") -> list[Command]:
    epochs = {run.number: run.epoch for run in story.execution.runs}
    return [
        Release(number, epochs[number], ReleaseReason.WITHDRAWN, may_have_begun, instance_id=instance_id)
        for number in numbers
    ]


async def test_grant_in_doubt_is_given_up_only_where_twice_is_harmless() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.in_doubt([*grants(story), Grant("unknown.1", 1, None)])
    assert await put(executions) == given_up(story, 2, 3, may_have_begun=True)


async def test_grant_in_doubt_stays_with_its_runner_that_comes_back_with_it() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.in_doubt(grants(story))
    owner = SessionRunners(executions, cast("Any", None), cast("Any", None))
    owner.on_taken(cast("Any", None), grants(story))
    assert await put(executions) == []


async def test_denied_run_is_given_up_whatever_it_is() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.handed_back("i1", [Refused(each.lease_id, each.epoch, "NOT_HELD") for each in grants(story)])
    assert await put(executions) == given_up(story, 1, 2, 3, may_have_begun=True, instance_id="i1")


async def test_grant_that_was_never_sent_goes_elsewhere_at_once() -> None:
    story = live_story()
    executions = executions_of(story)
    executions.unsent(grants(story))
    commands = [each.command for each in executions.by_id[EXECUTION_ID].inbox]
    assert commands == given_up(story, 1, 2, 3, may_have_begun=False)


def sent(message_id: str) -> ExecutionMessage:
    message = ExecutionMessage(message_id=message_id, execution_id=EXECUTION_ID)
    message.cancel.reason = "enough"
    return message


def message(message_id: str) -> ReceivedMessage:
    return received_message(sent(message_id), forwarded_command)


def granted(carries: OwnedExecutions, *message_ids: str) -> OwnedExecution:
    grant = ExecutionGrant(messages=[sent(each) for each in message_ids])
    grant.lease.lease_id, grant.lease.epoch = EXECUTION_ID, 1
    grant.start.execution_id = EXECUTION_ID
    carries.take_on([granted_execution(grant, "c1", forwarded_command)])
    owned = carries.by_id[EXECUTION_ID]
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
