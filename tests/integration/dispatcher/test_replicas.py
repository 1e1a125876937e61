"""Two dispatchers share the slots, and each finds the lost grants, leases and messages of the other."""

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.dispatcher.conftest import Rig, new_start
from tests.integration.dispatcher.parties import SECONDS, Api, Coordinator, running_dispatcher
from tests.integration.dispatcher.test_service import QUEUED, cancel, item
from tests.support.postgres import Database
from tests.support.probe import until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def addresses(database: Database) -> AsyncIterator[list[str]]:
    url = database.url("dispatcher")
    async with running_dispatcher(url, "a") as first, running_dispatcher(url, "b") as second:
        yield [first, second]


async def finish_all(coordinator: Coordinator, count: int) -> None:
    done = 0
    while done < count:
        grants = await coordinator.granted(done + 1)
        finished, done = grants[done:], len(grants)
        await coordinator.finished(*finished)


async def test_slots_freed_at_one_replica_serve_what_waits_at_the_other(addresses: list[str]) -> None:
    async with Coordinator(*addresses) as coordinator, Api(addresses[0]) as api:
        sent = [item("shared", executions_max=2) for _ in range(60)]
        await api.enqueue(*sent)
        await finish_all(coordinator, len(sent))
        assert len({grant.lease.lease_id for grant in coordinator.grants}) == len(sent) == len(coordinator.grants)


async def test_same_execution_sent_to_both_replicas_starts_once(addresses: list[str]) -> None:
    async with Coordinator(*addresses) as coordinator, Api(addresses[0]) as one, Api(addresses[1]) as other:
        sent = [item("both", request_id=f"r-{n}") for n in range(20)]
        await one.send(*sent)
        answers = await other.enqueue(*sent)
        assert {answer.outcome for answer in answers} == {QUEUED}
        await finish_all(coordinator, len(sent))
        assert len(coordinator.grants) == len(sent)


async def test_work_that_nobody_was_told_of_is_found(addresses: list[str], rig: Rig) -> None:
    async with Coordinator(*addresses) as coordinator:
        await rig.limit("silent", 5)
        await rig.enqueue(new_start("silent"))
        await finish_all(coordinator, 1)


@pytest.mark.parametrize("is_live", [True, False], ids=["never sent", "held by nobody"])
async def test_grant_that_its_holder_cannot_have_is_granted_again(
    addresses: list[str], rig: Rig, is_live: bool
) -> None:
    async with Coordinator(*addresses) as coordinator:
        workspace = f"lost-{is_live}"
        holder = coordinator.holder.instance_id if is_live else str(uuid.uuid4())
        await rig.limit(workspace, 1)
        (lost,) = (await rig.enqueue(new_start(workspace), holders=1, holder=holder)).claims
        (grant,) = await coordinator.granted(1)
        assert (grant.lease.lease_id, grant.lease.epoch > lost.epoch) == (lost.execution_id, True)
        await coordinator.finished(grant)


async def test_going_execution_keeps_its_lease_when_a_replica_goes(database: Database) -> None:
    url = database.url("dispatcher")
    async with running_dispatcher(url, "stays") as stays:
        async with running_dispatcher(url, "goes") as goes:
            coordinator = Coordinator(stays, goes)
            await coordinator.__aenter__()
            async with Api(goes) as api:
                grant = await coordinator.take(api, item("moved"))
        await coordinator.finished(grant)
        assert coordinator.taken == [grant.lease.lease_id]
        assert not coordinator.ended
        await coordinator.__aexit__()


async def test_messages_reach_a_holder_whatever_replica_takes_them(addresses: list[str]) -> None:
    async with Coordinator(*addresses) as coordinator, Api(addresses[0]) as one, Api(addresses[1]) as other:
        await one.enqueue(item("crossed"))
        (grant,) = await coordinator.granted(1)
        for number, api in enumerate((one, other)):
            request = cancel(grant.lease.lease_id, f"cross-{number}", "crossed")
            assert (await api.queue.Deliver(request)).found
        await until(lambda: len({m.message_id for m in coordinator.messages}) == 2, SECONDS, "both messages")
        await coordinator.finished(grant)
