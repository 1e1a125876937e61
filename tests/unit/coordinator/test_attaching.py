"""A coordinator judges the runs that a runner names when it attaches."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.chassis.identity.callers import CallerKind, Identity, set_caller
from services.chassis.lease.frames import Attach, Lease, Refused
from services.chassis.session.owners import AttachRefused
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.peers.dispatch import start_command
from services.coordinator.rpc.runners import SessionRunners
from tests.support.story import Story, started
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"


async def judged(story: Story, *leases: Lease) -> list[Refused]:
    """The answer to the runner of the first run, from a coordinator that holds the execution of the story."""
    owned = OwnedExecution(ID, 1, start_command(ExecutionGrant(), "c1"), execution=story.execution)
    attach = Attach("runner", story.execution.runs[0].instance_id, 1, held=leases)
    return list(await runners_of({ID: owned}).admit(attach))


def runners_of(by_id: dict[str, OwnedExecution]) -> SessionRunners:
    made = SessionRunners(cast("Any", SimpleNamespace(by_id=by_id)), cast("Any", None))
    made.registry = cast("Any", SimpleNamespace(of_instance=lambda _: None))
    return made


def begun() -> Story:
    story = started()
    story.assign("a")
    return story


@pytest.mark.parametrize(
    "attach",
    [
        Attach("runner", "i", 1, modules=["noop@1", "noop"]),
        Attach("runner", "i", 1, modules=["noop@1"], idempotent_modules=["noop"]),
    ],
)
async def test_name_that_is_no_modules_is_refused(attach: Attach) -> None:
    with pytest.raises(AttachRefused, match="modules are named"):
        await runners_of({}).admit(attach)


async def test_run_that_is_over_is_the_runners_no_longer() -> None:
    story = begun()
    lease = Lease(f"{ID}.1", story.run("a").epoch)
    assert await judged(story, lease) == []
    story.lose()
    assert await judged(story, lease) == [Refused(*lease, "LEASE_ENDED")]


async def test_run_beyond_what_is_known_here_is_left_to_its_holder() -> None:
    """A coordinator that was stopped during a take-over hears of later runs before it hears of its loss."""
    assert await judged(begun(), Lease(f"{ID}.2", 9)) == []


async def test_nobody_learns_which_executions_of_others_are_held_here() -> None:
    story = begun()
    lease = Lease(f"{ID}.1", story.run("a").epoch)
    story.lose()
    set_caller(Identity(CallerKind.RUNNER, "k", "elsewhere"))
    assert await judged(story, lease) == []
