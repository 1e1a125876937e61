"""Reports of runs that a runner does not have, or that nobody can use, are refused, and nobody else is hurt."""

from typing import Any

import pytest

from services.chassis.blobs import BlobRef, DirectoryBlobs, month_of
from services.chassis.postgres.database import Database
from tests.support.coordinator_stage import Stage, StageRunner, eventually, execution_id
from tests.support.live_sessions import live_sessions
from windlass.coordinator.v1 import sessions_pb2 as runs_pb

STEP = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}


def claim_of(lease_id: str, epoch: int = 2) -> runs_pb.RunGrant:
    grant = runs_pb.RunGrant()
    grant.lease.lease_id, grant.lease.epoch = lease_id, epoch
    return grant


async def going(on_stage: Stage, runner: StageRunner, session: Any) -> Any:
    """An execution whose run is at the runner, which says nothing."""
    runner.work = lambda grant: None
    return await on_stage.start_at(runner, session, on_stage.catalog.add("v-one", **STEP))


async def test_a_report_without_a_run_is_refused_and_the_coordinator_serves_on(on_stage: Stage) -> None:
    session, runner = await on_stage.with_runner()
    id_ = execution_id()
    malformed = ["abc.1", "1", "", f"{id_}.x", f"{id_}.99999999999", "{},.1", id_.upper() + ".1"]
    for lease_id in malformed:
        runner.answer(claim_of(lease_id), {})
    await eventually(lambda: len(runner.refused) == len(malformed))
    assert {reason for _, reason in runner.refused} == {"LEASE_UNKNOWN"}
    order = await going(on_stage, runner, session)
    runner.answer(runner.grants[-1], {})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def test_a_run_is_ended_only_by_the_runner_that_has_it(on_stage: Stage) -> None:
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address, "owner")
    order = await going(on_stage, runner, session)
    other = await on_stage.runner(address, "other")
    grant = runner.grants[-1]
    other.progress.append(runs_pb.RunProgress(run_id=grant.lease.lease_id, epoch=grant.lease.epoch, cursor=b"1"))
    other.answer(grant, {"whose": "the other's"})
    await eventually(lambda: other.refused)
    assert other.refused == [(grant.lease.lease_id, "LEASE_UNKNOWN")]
    runner.answer(grant, {"whose": "the owner's"})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert len(runner.grants) == 1
    assert not other.grants


async def test_a_report_outlives_the_instance_that_was_granted_the_run(on_stage: Stage) -> None:
    """The runner's lease was judged dead while it worked; it comes back as another instance, with the result."""
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    order = await going(on_stage, runner, session)
    before = runner.holder.instance_id
    returned = await on_stage.runner(address, "returned")
    returned.answer(runner.grants[-1], {}, instance_id=before)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def test_a_runner_of_one_workspace_says_nothing_about_another(on_stage: Stage) -> None:
    first_address, session = await on_stage.coordinator("0")
    second_address, _ = await on_stage.coordinator("1")
    on_stage.catalog.keys["theirs"] = "elsewhere"
    runner = await on_stage.runner(first_address)
    stranger = await on_stage.runner(first_address, "stranger", key="theirs")
    distant = await on_stage.runner(second_address, "distant", key="theirs")
    order = await going(on_stage, runner, session)
    grant, instance_id = runner.grants[-1], runner.holder.instance_id
    for each in (stranger, distant):
        each.answer(grant, {"forged": True}, instance_id=instance_id)
        each.answer(claim_of(f"{execution_id()}.1"), {})
    await eventually(lambda: len(stranger.refused) == len(distant.refused) == 2)
    assert {reason for _, reason in stranger.refused + distant.refused} == {"LEASE_UNKNOWN"}
    assert not on_stage.dispatcher.delivered
    runner.answer(grant, {})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def test_a_session_ends_with_the_key_that_opened_it(on_stage: Stage) -> None:
    address, session = await on_stage.coordinator()
    on_stage.catalog.keys["doomed"] = ""
    runner = await on_stage.runner(address, "doomed", key="doomed")
    order = await going(on_stage, runner, session)
    del on_stage.catalog.keys["doomed"]
    await eventually(lambda: not live_sessions(runner.holder))
    other = await on_stage.runner(address, "other")
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert other.grants[0].attempt == 2
    assert not live_sessions(runner.holder)


async def test_a_session_that_no_key_opened_is_ended_with_none(on_stage: Stage) -> None:
    address, _ = await on_stage.coordinator()
    own = await on_stage.runner(address, "own", key="")
    for key in ("first", "second"):  # two rounds, so that the second one carries what the first one has ended
        on_stage.catalog.keys[key] = ""
        runner = await on_stage.runner(address, key, key=key)
        del on_stage.catalog.keys[key]

        def is_out(runner: StageRunner = runner) -> bool:
            return not live_sessions(runner.holder)

        await eventually(is_out)
    assert own.opened == 1


VALUE = b'"%b"' % (b"x" * 300_000)


async def reference(on_stage: Stage, order: Any, kind: str) -> BlobRef:
    """A reference to an output, which is wrong in this way, or good."""
    blobs = DirectoryBlobs(on_stage.directory / "outputs")
    month = month_of(order.lease.lease_id)
    other = await blobs.put(b"{}", "default", month)
    if kind == "of another workspace":
        return await blobs.put(VALUE, "elsewhere", month)
    if kind == "of another month":
        return await blobs.put(VALUE, "default", "2020-01")
    if kind == "invented":
        return BlobRef(other.key.replace(other.sha256, "ab" * 32), "ab" * 32, 300_000)
    good = await blobs.put(VALUE, "default", month)
    wrong = {
        "too small": good._replace(size_bytes=0),
        "too large": good._replace(size_bytes=good.size_bytes + 1),
        "of another hash": good._replace(sha256=other.sha256),
        "outside the store": good._replace(key="../" + good.key),
    }
    return wrong.get(kind, good)


async def runs_of(tables: Database, order: Any) -> list[tuple[Any, ...]]:
    select = "SELECT state, error_class, error_type FROM runs WHERE execution_id = %s ORDER BY number"
    return list(await tables.fetch(select, (order.lease.lease_id,)))


def stored(ref: BlobRef, instance_id: str = "") -> runs_pb.RunReport:
    report = runs_pb.RunReport()
    report.head.instance_id = instance_id
    named = report.succeeded.output.ref
    named.key, named.sha256, named.size_bytes = ref
    return report


@pytest.mark.parametrize("by_mailbox", [False, True], ids=["directly", "by the mailbox"])
@pytest.mark.parametrize(
    "kind",
    [
        "invented",
        "of another workspace",
        "of another month",
        "too small",
        "too large",
        "of another hash",
        "outside the store",
        "good",
    ],
)
async def test_success_with_an_output_that_is_not_there_is_a_failure(
    on_stage: Stage, tables: Database, kind: str, by_mailbox: bool
) -> None:
    address, session = await on_stage.coordinator("0")
    runner = reporter = await on_stage.runner(address)
    order = await going(on_stage, runner, session)
    if by_mailbox:
        other_address, _ = await on_stage.coordinator("1")
        reporter = await on_stage.runner(other_address, "distant")
    report = stored(await reference(on_stage, order, kind), runner.holder.instance_id)
    reporter.report(runner.grants[-1], report)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    refused = ("FAILED", "PERMANENT", "OUTPUT_REF_INVALID")
    assert await runs_of(tables, order) == [("SUCCESS", None, None) if kind == "good" else refused]
    assert len(on_stage.dispatcher.delivered) == by_mailbox


async def test_report_waits_for_the_output_store_and_holds_up_no_other(on_stage: Stage, tables: Database) -> None:
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    order = await going(on_stage, runner, session)
    ref = await reference(on_stage, order, "good")
    store = on_stage.directory / "outputs"
    store.rename(store.with_suffix(".moved"))
    runner.report(runner.grants[0], stored(ref))
    other = await on_stage.start_at(runner, session, "v-one")
    runner.answer(runner.grants[1], {})
    await eventually(lambda: other.lease.lease_id in on_stage.dispatcher.finished)
    assert await runs_of(tables, order) == [("LEASED", None, None)]
    store.with_suffix(".moved").rename(store)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert await runs_of(tables, order) == [("SUCCESS", None, None)]
