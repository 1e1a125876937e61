"""Stories of reports and of their answers."""

from __future__ import annotations

from windlass.conformance.coordinator import BEAT, SELF_FENCE, Policy
from windlass.conformance.rules import Duty
from windlass.conformance.scene import SLACK, Scene, told
from windlass.types.v1 import session_pb2 as types

# The reasons for which a report is refused, and its lease is over.
REFUSALS = ("LEASE_UNKNOWN", "EPOCH_STALE", "LEASE_ENDED", "EXECUTION_FINAL")


async def answer_is_lost(scene: Scene) -> None:
    """A report is repeated on the next stream, and forgotten once it is answered."""
    stream = await scene.stream(0)
    scene.answer_by(Policy(answers_reports=False))
    lease = await scene.grant(stream, scene.quick)
    await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), "finished work is not reported")
    await scene.beats_after(stream, 2)
    scene.judge.check(Duty.BEAT_HELD, lease.is_named_by(stream), "a lease is not named while its report is unanswered")
    (report,) = scene.reports(lease)[:1]
    scene.judge.check(
        Duty.REPORT_HEAD,
        report.head.instance_id in ("", stream.instance_id),
        f"the report names instance {report.head.instance_id}",
    )
    stream.cut()
    await scene.until(Duty.REPORT_REPEATED, lambda: len(scene.reports(lease)) > 1, "the report was not repeated")
    ids = {each.head.report_id for each in scene.reports(lease)}
    scene.judge.check(Duty.REPORT_REPEATED, len(ids) == 1, f"it came under the ids {ids}")
    again = next(each for each in scene.streams() if each is not stream and any(map(lease.is_of, each.reports)))
    again.send(taken_reports=list(ids))
    scene.answer_by(Policy())
    await scene.beats_after(again, 1)
    await scene.until(Duty.REPORT_TAKEN, lambda: not lease.is_named_by(again), "beats still name the lease")
    count = len(scene.reports(lease))
    is_repeated = lambda: len(scene.reports(lease)) > count  # noqa: E731
    await scene.never(Duty.REPORT_TAKEN, is_repeated, "it was sent again", 2 * BEAT)


async def report_is_repeated_elsewhere(scene: Scene) -> None:
    """Any coordinator takes the report, also when the execution has ended since. Acknowledgements may cross."""
    first, second = await scene.stream(0), await scene.stream(1)
    scene.answer_by(Policy(answers_reports=False))
    lease = await scene.grant(first, scene.quick)
    await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), "finished work is not reported")
    report_id = scene.reports(lease)[0].head.report_id
    scene.coordinators[0].policy = Policy(is_away=True)
    first.cut()
    rule, seen = Duty.REPORT_ELSEWHERE, "the report did not come to the other coordinator"
    await scene.until(rule, lambda: any(map(lease.is_of, second.reports)), seen)
    ids = {each.head.report_id for each in scene.reports(lease)}
    scene.judge.check(rule, ids == {report_id}, f"it came under the ids {ids}")
    rule, seen = Duty.REPORT_TAKEN_AGAIN, "the next work is not reported"
    second.send(taken_reports=[report_id, "no such report", report_id])
    scene.answer_by(Policy())
    (await scene.stream(0, rule)).send(taken_reports=[report_id])
    later = await scene.grant(second, scene.quick)
    await scene.until(rule, lambda: any(map(later.is_of, second.reports)), seen)
    seen = "beats still name the lease"
    await scene.until(Duty.REPORT_TAKEN, lambda: not lease.is_named_by(second), seen, 2 * BEAT + SLACK)


async def report_is_not_understood(scene: Scene) -> None:
    """The coordinator is older than the runner. It understands a failure, and the run is the runner's until then."""
    stream = await scene.stream(0)
    stream.policy = Policy(answers_reports=False)
    lease = await scene.grant(stream, scene.quick)
    await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), "finished work is not reported")
    first, rule = scene.reports(lease)[0].head.report_id, Duty.REPORT_INVALID
    stream.send(refused_reports=[types.ReportRefusal(report_id=first, reason="REPORT_INVALID")])
    await scene.until(rule, lambda: len(scene.reports(lease)) > 1, "nothing was reported instead")
    instead = scene.reports(lease)[1]
    is_kept = instead.WhichOneof("outcome") == "failed" and instead.head.report_id != first
    scene.judge.check(rule, is_kept, f"this was reported instead: {told(instead)}")
    await scene.beats_after(stream, 2)
    scene.judge.check(rule, lease.is_named_by(stream), "beats do not name the lease any more")
    stream.send(taken_reports=[instead.head.report_id])
    stream.policy = Policy()
    await scene.until(rule, lambda: not lease.is_named_by(stream), "beats still name the lease")


async def report_is_refused(scene: Scene) -> None:
    stream, rule = await scene.stream(0), Duty.REPORT_REFUSED
    leases = []
    for reason in REFUSALS:
        stream.policy = Policy(refuses_reports=reason)
        leases.append(lease := await scene.grant(stream, scene.quick))
        await scene.until(rule, lambda lease=lease: scene.reports(lease), "finished work is not reported")  # type: ignore[misc]
    await scene.beats_after(stream, 2)
    for reason, lease in zip(REFUSALS, leases, strict=True):
        scene.judge.check(rule, not lease.is_named_by(stream), f"beats still name the lease refused with {reason}")
    is_repeated = lambda: any(len(scene.reports(lease)) > 1 for lease in leases)  # noqa: E731
    await scene.never(rule, is_repeated, "it was sent again", 2 * BEAT)
    stream.policy = Policy()


async def timeout_passes(scene: Scene) -> None:
    stream = await scene.stream(0)
    seconds = 2 * BEAT
    lease = await scene.grant(stream, scene.slow, timeout=seconds)
    rule = Duty.REPORT_TIMEOUT
    await scene.until(rule, lambda: scene.reports(lease), "nothing is reported", seconds + 2 * SLACK)
    report = scene.reports(lease)[0]
    is_kept = report.WhichOneof("outcome") == "failed" and getattr(report.failed, "class") == 3
    scene.judge.check(rule, is_kept, f"it was reported as {told(report)}")


async def work_is_deferred(scene: Scene) -> None:
    """The module hands its token to somebody else. Nobody has given the runner such a module, or it is told nothing."""
    if scene.deferring is None:
        return
    stream, lease = await scene.stream(0), scene.lease()
    await scene.grant(stream, scene.deferring, lease, completion_token=f"{lease.lease_id}.proof")
    rule = Duty.REPORT_DEFERRED
    await scene.until(rule, lambda: scene.reports(lease), "nothing is reported")
    report = scene.reports(lease)[0]
    scene.judge.check(rule, report.WhichOneof("outcome") == "deferred", f"it was reported as {told(report)}")
    await scene.until(rule, lambda: not lease.is_named_by(stream), "beats still name the lease")
    await scene.until(rule, lambda: stream.credit > 0, "its place is not stated as credit")


async def instance_ends(scene: Scene) -> None:
    """A refused renewal ends all leases. Only the report of work that was done before is still of use."""
    for how in ("a refused renewal", "INSTANCE_ENDED"):
        first, second = await scene.stream(0), await scene.stream(1)
        old = first.instance_id
        running = await scene.grant_held(first)
        scene.answer_by(Policy(answers_reports=False))
        first.policy = Policy(answers_beats=False, answers_reports=False)
        done = await scene.grant(first, scene.quick)
        await scene.until(Duty.REPORT_SUCCESS, lambda done=done: scene.reports(done), "finished work is not reported")  # type: ignore[misc]
        if how == "INSTANCE_ENDED":
            first.send_fault(how)
        else:
            await scene.until(Duty.BEAT_TIMELY, lambda first=first: first.is_beat_pending, "no beat came", 3 * BEAT)  # type: ignore[misc]
            first.answer_beat(is_renewed=False)
        for stream in (first, second):
            fresh = await scene.next_stream(stream, Duty.INSTANCE_FRESH)
            assert fresh.attach is not None
            is_kept = fresh.instance_id != old and not fresh.attach.held
            seen = f"after {how}: the same instance or {len(fresh.attach.held)} leases"
            scene.judge.check(Duty.INSTANCE_FRESH, is_kept, seen)
        rule = Duty.REPORT_OUTLIVES
        await scene.until(rule, lambda done=done: len(scene.reports(done)) > 1, "the report was not repeated")  # type: ignore[misc]
        named = scene.reports(done)[-1].head.instance_id
        scene.judge.check(rule, named == old, f"the report names instance {named}, not {old}")
        scene.answer_by(Policy())
        for each in scene.streams():
            if each.is_live and each.reports:
                each.send(taken_reports=[report.head.report_id for report in each.reports])
        rule, seen = Duty.INSTANCE_WORK_ENDS, f"work of the ended instance was reported after {how}"
        await scene.never(rule, lambda running=running: scene.reports(running), seen, SELF_FENCE)  # type: ignore[misc]


STORIES = (
    answer_is_lost,
    report_is_repeated_elsewhere,
    report_is_not_understood,
    report_is_refused,
    timeout_passes,
    work_is_deferred,
    instance_ends,
)
