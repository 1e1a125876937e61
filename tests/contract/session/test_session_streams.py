"""The drivers run over real gRPC streams that work or break, with good holders and bad ones."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from services.chassis.lease.frames import Credit, HolderFrame, Lease, Refused, RefusedReport, ServerFrame
from services.chassis.lease.timing import EXECUTION
from services.chassis.session.owners import AttachRefused
from services.chassis.session.server import ServerSession
from services.chassis.session.stream_limits import SessionLimits
from tests.support.lease_hop import FAST, Addresses, RawHolder, Replica, grant_of, holding, raw, report_of, serving
from tests.support.live_sessions import live_sessions
from tests.support.probe import eventually, some, until
from tests.support.session_store import MemorySessionStore
from windlass.coordinator.v1 import sessions_pb2, sessions_pb2_grpc
from windlass.types.v1 import session_pb2

SECONDS = 20.0


@pytest.fixture
def store() -> MemorySessionStore:
    return MemorySessionStore(FAST)


async def session_of(replica: Replica, credit: int = 1) -> ServerSession:
    """The newest attached session, once it has credit."""

    def found() -> ServerSession | None:
        live = [each for each in replica.registry.sessions if each.credit >= credit]
        return live[-1] if live else None

    return await until(found, SECONDS, "an attached session with credit")


def grant(session: ServerSession, *lease_ids: str, epoch: int = 1) -> None:
    assert session.take_credit(len(lease_ids)) == len(lease_ids)
    assert session.grant([grant_of(lease_id, epoch) for lease_id in lease_ids])


async def granted_at(replica: Replica, worker: Any, *lease_ids: str) -> ServerSession:
    """The session in which the worker was sent these grants, once it has them."""
    session = await session_of(replica)
    grant(session, *lease_ids)
    await until(lambda: len(worker.grants) == len(lease_ids), SECONDS, "the grants")
    return session


async def granted_to(holder: RawHolder, replica: Replica, *lease_ids: str) -> None:
    """Send these grants to the holder, which reads them and does not count them."""
    await holder.attach()
    await holder.say(HolderFrame(credit=Credit(1, len(lease_ids))))
    grant(await session_of(replica), *lease_ids)
    while not some(await holder.hear()).grants:
        pass


# ── the ordinary way ─────────────────────────────────────────────────────────────────────────────────────────


async def test_lease_goes_down_and_its_report_up(store: MemorySessionStore):
    async with serving(store) as replica, holding(replica) as worker:
        session = await granted_at(replica, worker, "x", "y")
        assert (session.attach.holder, session.attach.labels) == ("worker", {"zone": "a"})
        assert (session.attach.modules, session.attach.idempotent_modules) == (("noop@1", "x.y@1"), ("x.y@1",))
        assert worker.holder.may_start()
        await until(lambda: len(replica.owner.taken) == 2, SECONDS, "the count of the grants")
        worker.done("1", "x")
        await until(lambda: worker.taken, SECONDS, "the acknowledgement")
        assert worker.holder.rules.leases == {"y": 1}
        await until(lambda: session.holds("y", 1) and not session.holds("x", 1), SECONDS, "a beat")


async def test_acknowledgement_goes_with_what_is_said_next(store: MemorySessionStore):
    async with serving(store) as replica, raw(replica) as holder:
        await holder.attach()
        await holder.say(HolderFrame(credit=Credit(1, 1)))
        session = await session_of(replica)
        session.acknowledge(["r"])
        grant(session, "x")
        frame = some(await holder.hear())
        assert (frame.taken, [each.lease_id for each in frame.grants]) == (["r"], ["x"])


async def test_acknowledgement_and_count_that_find_no_company_go_alone():
    # Beats that would carry them are minutes away.
    slow = EXECUTION.scaled(60.0)
    async with serving(MemorySessionStore(slow), timing=slow) as replica, holding(replica, timing=slow) as worker:
        session = await session_of(replica)
        grant(session, "x")
        await until(lambda: replica.owner.taken, SECONDS, "the count of the grant")
        worker.done("1", "x")
        await until(lambda: worker.taken, SECONDS, "the acknowledgement")


async def test_server_that_states_no_times_to_keep_to_is_given_up_alone(store: MemorySessionStore):
    dialled = []

    class Untimely(sessions_pb2_grpc.RunnerSessionsServicer):
        async def Session(self, request_iterator: Any, context: Any) -> Any:
            dialled.append(await anext(request_iterator))
            attached = session_pb2.Attached(session_id="s", server="untimely")
            yield sessions_pb2.SessionResponse(control=session_pb2.ServerControl(attached=attached))
            await asyncio.Event().wait()

    untimely = grpc.aio.server()
    sessions_pb2_grpc.add_RunnerSessionsServicer_to_server(Untimely(), untimely)
    port = untimely.add_insecure_port("127.0.0.1:0")
    await untimely.start()
    async with serving(store) as replica:
        book = Addresses(replica.address, f"127.0.0.1:{port}")
        async with holding(addresses=book) as worker:
            await granted_at(replica, worker, "x")
            await until(lambda: len(dialled) > 2, SECONDS, "the next tries")
            assert live_sessions(worker.holder) == 1
            assert worker.holder.rules.leases == {"x": 1}
    await untimely.stop(None)


async def test_notes_go_with_the_beats_as_the_hop_has_them(store: MemorySessionStore):
    async with serving(store) as replica, holding(replica) as worker:
        await session_of(replica)
        worker.beat_note = [sessions_pb2.RunProgress(run_id="x", fraction=0.5)]
        await until(lambda: replica.owner.notes, SECONDS, "a note with a beat")


async def test_thousands_of_items_share_frames(store: MemorySessionStore):
    async with serving(store) as replica, holding(replica, capacity=3_000) as worker:
        session = await session_of(replica, credit=3_000)
        grant(session, *[f"x{number}" for number in range(3_000)])
        await until(lambda: len(worker.grants) == 3_000, SECONDS, "the grants")
        for number, each in enumerate(worker.grants):
            worker.done(str(number), each.lease_id)
        await until(lambda: len(worker.taken) == 3_000, SECONDS, "the acknowledgements")
        assert worker.holder.rules.leases == {}


async def test_frame_that_is_too_large_for_a_message_is_spread():
    # Ten mebibytes take long on a busy machine, so the terms are the real ones.
    store, timing = MemorySessionStore(EXECUTION), EXECUTION
    async with serving(store, timing=timing) as replica, holding(replica, capacity=40, timing=timing) as worker:
        session = await session_of(replica, credit=40)
        assert session.take_credit(40) == 40
        session.grant([grant_of(f"x{number}", inputs=b"x" * 256 * 1024) for number in range(40)])
        session.revoke([Refused("x39", 1, "RUN_CANCELLED")])
        await until(lambda: len(worker.grants) == 40, SECONDS, "ten mebibytes of grants")
        await until(lambda: worker.revoked, SECONDS, "the revocation behind them")
        assert len(worker.holder.rules.leases) == 39


async def test_handed_back_grant_and_denied_claim_reach_the_owner(store: MemorySessionStore):
    async with serving(store) as replica, holding(replica) as worker:
        session = await granted_at(replica, worker, "x")
        worker.holder.rules.refuse("x", 1, "UNKNOWN_MODULE", "none such")
        session.claim([Lease("other", 3)])
        await until(lambda: len(replica.owner.refused) == 2, SECONDS, "both refusals")
        assert set(replica.owner.refused) == {
            Refused("x", 1, "UNKNOWN_MODULE", "none such"),
            Refused("other", 3, "NOT_HELD"),
        }


async def test_drain_ends_when_all_is_reported(store: MemorySessionStore):
    async with serving(store) as replica, holding(replica) as worker:
        await granted_at(replica, worker, "x")
        draining = asyncio.create_task(worker.holder.drain())
        await until(lambda: replica.owner.drained, SECONDS, "the drain at the server")
        assert not draining.done()
        worker.done("1", "x")
        async with asyncio.timeout(SECONDS):
            await draining
        assert worker.holder.rules.leases == {}


async def test_demand_moves_credit_between_replicas(store: MemorySessionStore):
    async with serving(store) as one, serving(store) as two, holding(one, two) as worker:
        await session_of(one, credit=5)
        session = await session_of(two, credit=5)
        two.registry.set_demand(100)
        await until(lambda: session.credit == 9, SECONDS, "the credit of an idle replica")
        assert live_sessions(worker.holder) == 2
        assert sum(each.credit for each in two.registry.sessions) == 9
        assert two.registry.with_credit() == [session]


# ── what breaks ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_reports_of_a_dead_replica_go_to_another(store: MemorySessionStore):
    async with serving(store) as one, serving(store) as two, holding(one, two) as worker:
        one.owner.is_acknowledging = False
        await granted_at(one, worker, "x")
        worker.done("1", "x")
        await until(lambda: one.owner.reports, SECONDS, "the report at the first replica")
        first = worker.holder.instance_id
        await one.kill()
        await until(lambda: worker.taken, SECONDS, "the acknowledgement by the second")
        assert [each.report_id for each in two.owner.reports] == ["1"]
        assert worker.holder.instance_id == first
        assert two.owner.ended == []


async def test_closed_stream_ends_the_instance_after_the_grace(store: MemorySessionStore):
    async with serving(store) as replica:
        async with holding(replica) as worker:
            await session_of(replica)
            instance_id = worker.holder.instance_id
        await until(lambda: replica.owner.ended, SECONDS, "the end of the instance")
        assert replica.owner.ended[0].instance_id == instance_id
        assert len(replica.owner.closed) == 1


async def test_work_that_may_be_done_twice_waits_for_less_time_than_the_instance(store: MemorySessionStore):
    timing = replace(FAST, closed_grace=SECONDS)
    async with serving(store, timing=timing) as replica:
        async with raw(replica) as holder:
            attached = some(some((await holder.attach()).attached).timing)
            assert attached.closed_grace == pytest.approx(SECONDS)
            assert attached.idempotent_grace == pytest.approx(FAST.idempotent_grace)
        await until(lambda: replica.owner.unheard, SECONDS, "word of the silence")
        assert (replica.owner.unheard, replica.owner.ended) == (["raw"], [])
        async with raw(replica) as holder:
            assert (await holder.attach()).attached is not None, "the same instance goes on"


async def test_closed_stream_ends_nothing_that_another_replica_hears(store: MemorySessionStore):
    async with serving(store) as one, serving(store) as two, holding(one, two) as worker:
        await session_of(one)
        await session_of(two)
        await one.kill()
        await until(lambda: store.judged, SECONDS, "the judgement of the one that lost its stream")
        assert (store.judged, one.owner.ended) == ([None], [])
        assert worker.edges == ["resumed"]


async def test_ended_instance_ends_all_work_and_comes_back_afresh(store: MemorySessionStore):
    async with serving(store) as replica, holding(replica) as worker:
        await granted_at(replica, worker, "x")
        first = worker.holder.instance_id
        await store.end(first)
        await until(lambda: "RENEWAL_REFUSED" in worker.edges, SECONDS, "the refused renewal")
        assert worker.holder.rules.leases == {}
        fresh = await until(lambda: replica.registry.of_instance(worker.holder.instance_id), SECONDS, "attach")
        assert fresh.instance_id != first
        assert fresh.held_count == 0


async def test_end_of_a_watched_instance_is_heard_at_every_replica(store: MemorySessionStore):
    async with serving(store) as one, serving(store) as two:
        async with holding(one) as worker:
            await session_of(one)
            two.owner.watching.add(worker.holder.instance_id)
        await until(lambda: one.owner.ended, SECONDS, "the end where the stream was")
        await until(lambda: two.owner.ended, SECONDS, "the end where there was none")


async def test_nothing_ends_while_the_database_is_away():
    # The stream is to be kept, so no beat may be missed on a busy machine.
    timing = EXECUTION.scaled(0.3)
    store = MemorySessionStore(timing)
    async with serving(store, timing=timing) as replica, holding(replica, timing=timing) as worker:
        session = await granted_at(replica, worker, "x")
        first = worker.holder.instance_id
        store.is_away = True
        await until(lambda: "fenced" in worker.edges, SECONDS, "the self-fence")
        assert not worker.holder.may_start()
        store.is_away = False
        await until(lambda: worker.edges[-1] == "resumed", SECONDS, "the end of the fence")
        assert worker.holder.instance_id == first
        assert worker.holder.rules.leases == {"x": 1}
        assert replica.owner.attached == [session], "the stream was kept"
        assert (replica.owner.ended, replica.owner.closed) == ([], [])


async def test_attach_waits_for_the_database(store: MemorySessionStore):
    store.is_away = True
    async with serving(store) as replica, raw(replica) as holder:
        frame = await holder.attach()
        assert some(frame.fault).reason == "DATABASE_AWAY"
        store.is_away = False
        async with holding(replica):
            await session_of(replica)


async def test_stream_that_is_never_answered_is_replaced(store: MemorySessionStore):
    async with serving(store, with_loops=False) as replica, holding(replica) as worker:
        await session_of(replica)
        await until(lambda: len(replica.owner.attached) >= 2, SECONDS, "a second stream")
        assert worker.edges[0] == "resumed"


async def test_replica_that_comes_back_is_dialled_again(store: MemorySessionStore):
    async with serving(store) as one:
        port = one.port
        addresses = Addresses(one.address)
        async with holding(addresses=addresses) as worker:
            await session_of(one)
            await one.kill()
            await until(lambda: live_sessions(worker.holder) == 0, SECONDS, "the loss")
            async with serving(store, port=port) as again:
                await session_of(again)


async def test_replica_that_has_left_is_forgotten_when_its_stream_ends(store: MemorySessionStore):
    async with serving(store) as one, serving(store) as two:
        addresses = Addresses(one.address, two.address)
        async with holding(addresses=addresses) as worker:
            await session_of(one)
            addresses.set(two.address)
            await session_of(two)
            assert worker.forgotten == [], "a stream outlives its address"
            await one.kill()
            await until(lambda: worker.forgotten, SECONDS, "the end of the stream")
            assert worker.forgotten == [one.address]
            async with serving(store, port=one.port) as again:
                addresses.set(one.address, two.address)
                await session_of(again)


async def test_stopping_server_ends_no_instance(store: MemorySessionStore):
    async with serving(store) as one, serving(store) as two, holding(one, two) as worker:
        await session_of(one)
        await session_of(two)
        first = worker.holder.instance_id
        await one.registry.stop()
        await until(lambda: one.owner.closed, SECONDS, "the end of the stream")
        async with raw(one) as late:
            assert (await late.fault()).reason == "SERVER_STOPPING"
        assert (worker.holder.instance_id, one.owner.ended, two.owner.ended) == (first, [], [])


async def test_grants_in_doubt_are_settled_by_the_next_attach(store: MemorySessionStore):
    async with serving(store, timing=replace(FAST, closed_grace=SECONDS)) as replica:
        async with raw(replica) as holder:
            await granted_to(holder, replica, "got", "lost")
        await until(lambda: replica.owner.closed, SECONDS, "the loss of the stream")
        async with raw(replica) as holder:
            await holder.attach(held=[Lease("got", 1)])
            await until(lambda: replica.owner.refused, SECONDS, "the settlement")
            assert [each.lease_id for each in replica.owner.taken] == ["got"]
            assert replica.owner.refused == [Refused("lost", 1, "NOT_HELD")]
            assert replica.owner.withdrawn == []


async def test_grants_in_doubt_are_nobody_elses_while_the_holder_lives_and_stays_away(store: MemorySessionStore):
    # Its instance is not ended before: another replica may hear it.
    timing = replace(FAST, closed_grace=SECONDS)
    async with serving(store, timing=timing) as replica:
        async with raw(replica) as holder:
            await granted_to(holder, replica, "x")
        await until(lambda: replica.owner.in_doubt, SECONDS, "word of the doubt")
        assert [each.lease_id for each in replica.owner.in_doubt] == ["x"]
        assert (replica.owner.withdrawn, replica.owner.refused) == ([], [])
        # Another replica ends the instance; this one asks after it because of the grant in doubt.
        await store.end("raw")
        await until(lambda: replica.owner.ended, SECONDS, "the end of the instance")


async def test_newer_stream_of_an_instance_takes_the_place_of_the_older(store: MemorySessionStore):
    async with serving(store) as replica, raw(replica) as older, raw(replica) as newer:
        await older.attach()
        await newer.attach()
        assert (await older.fault()).reason == "SUPERSEDED"
        assert await older.hear() is None
        session = replica.registry.of_instance("raw")
        assert session is replica.owner.attached[-1]
        await until(lambda: replica.owner.closed, SECONDS, "the end of the older")
        assert replica.registry.of_instance("raw") is session


# ── bad holders ──────────────────────────────────────────────────────────────────────────────────────────────


async def fault_after(replica: Replica, *frames: HolderFrame, attach: bool = True) -> str:
    """Send the frames and read to the end. Returns the reason of the last frame."""
    async with raw(replica) as holder:
        if attach:
            await holder.attach()
        for frame in frames:
            await holder.say(frame)
        reason = ""
        async with asyncio.timeout(SECONDS):
            while (answer := await holder.hear()) is not None:
                assert not reason, "a fault is the last frame"
                reason = answer.fault.reason if answer.fault is not None else ""
        assert await holder.call.code() is grpc.StatusCode.OK
    return reason


async def test_silent_stranger_is_shown_the_door(store: MemorySessionStore):
    async with serving(store) as replica:
        assert await fault_after(replica, attach=False) == "ATTACH_EXPECTED"


async def test_refused_attach_says_why(store: MemorySessionStore):
    async with serving(store) as replica, raw(replica) as holder:
        replica.owner.admit_refusal = AttachRefused("ROLE_REQUIRED", "not with this key")
        frame = await holder.attach()
        assert frame.fault is not None
        assert (frame.fault.reason, frame.fault.message) == ("ROLE_REQUIRED", "not with this key")
        assert await holder.hear() is None


async def test_attach_that_breaks_the_owner_gets_an_answer_too(store: MemorySessionStore):
    loop = asyncio.get_running_loop()
    broken: list[Any] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: broken.append(context["exception"]))
    try:
        async with serving(store) as replica, raw(replica) as holder:
            replica.owner.admit_refusal = RuntimeError("a bug")
            frame = await holder.attach()
            assert frame.fault is not None
            assert frame.fault.reason == "INTERNAL"
            assert "bug" not in frame.fault.message
            await until(lambda: broken, SECONDS, "the bug in the log")
    finally:
        loop.set_exception_handler(before)


async def test_lease_of_an_old_epoch_is_refused_at_the_attach_and_in_a_report(store: MemorySessionStore):
    async with serving(store) as replica, raw(replica) as holder:
        replica.owner.stale["x"] = 5
        frame = await holder.attach(held=[Lease("x", 4), Lease("y", 1)])
        assert frame.attached is not None
        assert frame.attached.refused == [Refused("x", 4, "EPOCH_STALE")]
        assert some(frame.attached.timing).beat == pytest.approx(FAST.beat)
        await holder.say(HolderFrame(reports=[report_of("1", "x", 4), report_of("2", "x", 5)]))
        answer = ServerFrame()
        while not answer.taken:
            answer = await holder.hear() or ServerFrame()
        assert answer.taken == ["2"]
        assert answer.refused_reports == [RefusedReport("1", "EPOCH_STALE")]


async def leave_unread(replica: Replica, holder: RawHolder) -> None:
    """Read nothing until the server has given the stream up."""
    await holder.attach()
    await holder.say(HolderFrame(credit=Credit(1, 1_000)))
    session = await session_of(replica, credit=1_000)
    assert session.take_credit(1_000) == 1_000
    session.grant([grant_of(f"x{number}", inputs=b"x" * 64 * 1024) for number in range(1_000)])
    await until(lambda: replica.owner.closed, SECONDS, "the cut")


async def test_holder_that_never_reads_is_cut(store: MemorySessionStore):
    async with serving(store) as replica, raw(replica) as holder:
        await leave_unread(replica, holder)
        assert replica.registry.of_instance("raw") is None
        assert replica.owner.withdrawn, "what never left goes elsewhere"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SessionLimits(sessions_max=1), "TOO_MANY_SESSIONS"),
        (SessionLimits(key_sessions_max=1), "KEY_SESSIONS_EXCEEDED"),
        (SessionLimits(unread_max=1), "NOT_READING"),
    ],
)
async def test_stream_that_is_never_read_counts_until_its_holder_lets_go(
    store: MemorySessionStore, limits: SessionLimits, reason: str
):
    async with serving(store, limits=limits) as replica, raw(replica) as holder:
        await leave_unread(replica, holder)
        assert await fault_after(replica, attach=False) == reason
        holder.call.cancel()

        async def is_served() -> bool:
            async with raw(replica) as other:
                return (await other.attach("other")).attached is not None

        await eventually(is_served, SECONDS, "a place")
