"""Stories of credit, grants, claims and revocations."""

from __future__ import annotations

from windlass.conformance.coordinator import BEAT, Policy
from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, SLACK, KitLease, KitWork, Scene, grant_of, told
from windlass.types.v1 import session_pb2 as types

ENDING_REASONS = ("CANCELLED", "TIMEOUT", "FAILED")
# The time in which stopped work is reported.
STOPPED_SECONDS = 1.5
# More work than this is not granted in a row.
ROW_MAX = 30
UNKNOWN = KitWork("conformance.unknown@1")


async def credit_moves_to_demand(scene: Scene) -> None:
    """Where work waits, credit may come from elsewhere, but no place is promised twice."""
    first, second = await scene.stream(0), await scene.stream(1)
    assert first.attach is not None
    capacity = first.attach.capacity

    def promised() -> int:
        return sum(max(each.credit_promised, 0) for each in (first, second))

    await scene.until(Duty.CREDIT_STATED, lambda: first.credit > 0 or second.credit > 0, "no credit is stated")
    for busy, idle in ((first, second), (second, first)):
        busy.send(demand=1_000)
        idle.send(demand=0)
        seen = f"more than {capacity} places are promised"
        await scene.never(Duty.CREDIT_WITHIN_CAPACITY, lambda: promised() > capacity, seen, 2 * BEAT)
        await scene.until(Duty.CREDIT_STATED, lambda busy=busy: busy.credit > 0, "no credit where work waits")  # type: ignore[misc]
    first.send(demand=0)
    second.send(demand=0)


async def work_follows_work(scene: Scene) -> None:
    """Places that become free are credited again."""
    stream = await scene.stream(0)
    assert stream.attach is not None
    for _ in range(min(2 * stream.attach.capacity + 1, ROW_MAX)):
        lease = await scene.grant(stream, scene.quick)
    await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), "finished work is not reported")
    count = stream.grants_sent
    seen = f"not all {count} grants are counted"
    await scene.until(Duty.GRANTS_SEEN, lambda: stream.grants_seen == count, seen, SLACK)
    outcome = scene.reports(lease)[0].WhichOneof("outcome")
    scene.judge.check(Duty.REPORT_SUCCESS, outcome == "succeeded", f"{scene.quick.module} was reported as {outcome}")


async def module_is_unknown(scene: Scene) -> None:
    lease = await scene.grant(await scene.stream(0), UNKNOWN)
    rule = Duty.GRANT_UNKNOWN_MODULE
    await scene.until(rule, lambda: scene.refusal(lease) or scene.reports(lease), "it was neither refused nor released")
    outcomes = {report.WhichOneof("outcome") for report in scene.reports(lease)}
    scene.judge.check(rule, outcomes <= {"released"}, f"it was reported as {outcomes}")


async def epochs_rise(scene: Scene) -> None:
    """Of two grants of one run, only that with the higher epoch counts."""
    first, second = await scene.stream(0), await scene.stream(1)
    held = await scene.grant(first, scene.slow, scene.lease(epoch=5))
    await scene.until(Duty.BEAT_HELD, lambda: held.is_named_by(second), "no beat names the granted lease")
    stale = await scene.grant(second, scene.quick, KitLease(held.lease_id, 4))
    await scene.is_not_begun(Duty.GRANT_STALE, stale, "a grant with a lower epoch was done")
    scene.judge.check(Duty.GRANT_STALE, held.is_named_by(first), "the lease with the higher epoch was dropped")
    newer = await scene.grant(second, scene.slow, KitLease(held.lease_id, 6))
    await scene.until(Duty.GRANT_NEWER, lambda: newer.is_named_by(second), "beats do not name the higher epoch")
    first.send(revoked=[types.Revoke(lease_id=held.lease_id, epoch=held.epoch, reason="CANCELLED")])
    await scene.beats_after(second, 2)
    is_kept = newer.is_named_by(second) and not scene.reports(newer)
    scene.judge.check(Duty.REVOKE_UNKNOWN, is_kept, "the revocation of an older epoch ended the work")
    await scene.revoke(second, newer)


async def places_are_kept_for_others(scene: Scene) -> None:
    """Beside work of the same workspace, work waits or is handed back. Timeouts show what has begun."""
    stream, rule = await scene.stream(0), Duty.GRANT_PLACES
    running = await scene.grant_held(stream)
    beside = await scene.grant(stream, scene.slow, timeout=BEAT, places_max=1)
    await scene.is_not_begun(rule, beside, "a run began beside another one of its workspace")
    other = await scene.grant(stream, scene.slow, timeout=BEAT, places_max=1, workspace="another")
    seen = "a run of another workspace did not begin"
    await scene.until(rule, lambda: scene.reports(other), seen)
    outcome = scene.reports(other)[0].WhichOneof("outcome")
    scene.judge.check(rule, outcome == "failed", f"{seen}, and was reported as {outcome}")
    await scene.revoke(stream, running)


async def target_is_not_to_be_called(scene: Scene) -> None:
    """The runner has named the target before. Nobody has given it a module that does so, or it is told nothing."""
    if scene.calling is None:
        return
    stream, rule = await scene.stream(0), Duty.TARGET_OPEN
    first = await scene.grant(stream, scene.calling)
    await scene.until(rule, lambda: scene.reports(first), "nothing is reported", 2 * PATIENCE)
    target = scene.reports(first)[0].target
    scene.judge.check(rule, bool(target), f"{scene.calling.module} names no target")
    later = await scene.grant(stream, scene.calling, open_targets=["another target", target])
    await scene.until(rule, lambda: scene.reports(later), "nothing is reported", 2 * PATIENCE)
    report = scene.reports(later)[0]
    is_kept = report.released.reason == "CIRCUIT_OPEN" and report.target == target
    scene.judge.check(rule, is_kept, f"it was reported as {told(report)}")


async def much_comes_at_once(scene: Scene) -> None:
    """A grant is claimed in its own frame, and another one is revoked in it."""
    stream, rule = await scene.stream(0), Duty.FRAME_ORDER
    claimed, revoked = scene.lease(), scene.lease()
    await scene.until(Duty.CREDIT_STATED, lambda: stream.credit > 1, "there is no credit for two grants")
    stream.send(
        grants=(grant_of(claimed, scene.slow), grant_of(revoked, scene.slow)),
        revoked=[types.Revoke(lease_id=revoked.lease_id, epoch=revoked.epoch, reason="CANCELLED")],
        claims=[claimed.message()],
    )
    await scene.until(rule, lambda: claimed.is_named_by(stream), "beats do not name the lease that was claimed")
    scene.judge.check(rule, scene.refusal(claimed) is None, "the lease that was claimed with its grant was refused")
    seen = "nothing was reported of the lease that was revoked with its grant"
    await scene.until(rule, lambda: scene.reports(revoked), seen, STOPPED_SECONDS + SLACK)
    outcome = scene.reports(revoked)[0].WhichOneof("outcome")
    scene.judge.check(rule, outcome == "stopped", f"the lease that was revoked was reported as {outcome}")
    await scene.revoke(stream, claimed)


async def execution_ends(scene: Scene) -> None:
    """Work stops soon when its execution ends, and says so."""
    for reason in ENDING_REASONS:
        stream = await scene.stream(0)
        lease = await scene.grant_held(stream)
        stream.send(revoked=[types.Revoke(lease_id=lease.lease_id, epoch=lease.epoch, reason=reason)])
        rule, seen = Duty.REVOKE_STOPPED, f"nothing was reported after a revocation with {reason}"
        await scene.until(rule, lambda lease=lease: scene.reports(lease), seen, STOPPED_SECONDS + SLACK)  # type: ignore[misc]
        outcome = scene.reports(lease)[0].WhichOneof("outcome")
        is_kept = outcome == "stopped" and any(lease.is_of(each) for each in stream.reports)
        scene.judge.check(rule, is_kept, f"after {reason} it was reported as {outcome}, or to another coordinator")


async def attempt_has_failed_already(scene: Scene) -> None:
    """Nobody waits for work that is revoked for another reason."""
    stream = await scene.stream(0)
    lease = await scene.grant_held(stream)
    await scene.revoke(stream, lease)
    await scene.never(Duty.REVOKE_UNREPORTED, lambda: scene.reports(lease), "the revoked work was reported", 2 * BEAT)


async def revocation_is_repeated(scene: Scene) -> None:
    """It was lost with its stream. So it goes with the answer to the next attach, and a coordinator that takes the
    execution over sends it once more."""
    stream = await scene.stream(0)
    lease = await scene.grant_held(stream)
    revoked = types.Revoke(lease_id=lease.lease_id, epoch=lease.epoch, reason="CANCELLED")
    scene.coordinators[0].policy = Policy(repeated_revocations=(revoked,))
    stream.cut()
    again, rule = await scene.next_stream(stream), Duty.REVOKE_REPEATED
    seen = "nothing was reported after a revocation with the answer to the Attach"
    await scene.until(rule, lambda: scene.reports(lease), seen, STOPPED_SECONDS + SLACK)
    report = scene.reports(lease)[0]
    is_kept = report.WhichOneof("outcome") == "stopped" and report in again.reports
    scene.judge.check(rule, is_kept, f"it was reported as {told(report)}, or to another coordinator")
    (await scene.stream(1)).send(revoked=[revoked])
    is_answered_again = lambda: len(scene.reports(lease)) > 1  # noqa: E731
    await scene.never(rule, is_answered_again, "the revocation was answered again", 2 * BEAT)
    scene.coordinators[0].policy = Policy()


async def revocation_overtakes_its_grant(scene: Scene) -> None:
    """A grant may come late, on another stream. It is not begun any more; the next epoch is."""
    first, second = await scene.stream(0), await scene.stream(1)
    lease = scene.lease(epoch=3)
    first.send(revoked=[types.Revoke(lease_id=lease.lease_id, epoch=3, reason="NODE_TIMEOUT")])
    await scene.beats_after(first, 2)
    scene.judge.check(Duty.REVOKE_UNKNOWN, first.is_live and not scene.reports(lease), "it was answered")
    await scene.grant(second, scene.quick, lease)
    await scene.is_not_begun(Duty.REVOKE_BINDING, lease, "a grant was done after its revocation")
    newer = await scene.grant(second, scene.quick, KitLease(lease.lease_id, 4))
    await scene.until(Duty.REVOKE_BINDING, lambda: scene.reports(newer), "the next epoch was not begun either")


async def claims(scene: Scene) -> None:
    """Another coordinator takes over: it asks for leases that the runner has, and for one that it does not have."""
    first, second = await scene.stream(0), await scene.stream(1)
    unknown = scene.lease()
    second.send(claims=[unknown.message()])
    await scene.until(Duty.CLAIM_DENIED, lambda: scene.refusal(unknown), "the claim is not answered")
    refusal = scene.refusal(unknown)
    assert refusal is not None
    scene.judge.check(Duty.CLAIM_DENIED, refusal.reason == "NOT_HELD", f"the reason is {refusal.reason}")
    await scene.grant(first, scene.quick, unknown)
    await scene.is_not_begun(Duty.CLAIM_BINDING, unknown, "a grant was done after its claim was refused")
    held = await scene.grant(first, scene.slow, timeout=3 * BEAT)
    await scene.until(Duty.BEAT_HELD, lambda: held.is_named_by(first), "no beat names the granted lease")
    second.send(claims=[held.message()])
    await scene.until(Duty.REPORT_TIMEOUT, lambda: scene.reports(held), "the timeout was not reported", PATIENCE)
    is_kept = any(held.is_of(each) for each in second.reports)
    scene.judge.check(Duty.CLAIM_SERVED, is_kept, "it was reported to the coordinator that had granted it")


async def grant_arrives_twice(scene: Scene) -> None:
    """A grant is delivered again when nobody knows whether it arrived. It is still one run."""
    first, second = await scene.stream(0), await scene.stream(1)
    scene.answer_by(Policy(answers_reports=False))
    lease = await scene.grant(first, scene.quick)
    await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), "finished work is not reported")
    await scene.until(Duty.CREDIT_AGAIN, lambda: second.credit > 0, "there is no credit")
    second.send(grants=(grant_of(lease, scene.quick),))
    rule = Duty.GRANT_ONCE

    def ids() -> set[str]:
        return {report.head.report_id for report in scene.reports(lease)}

    await scene.never(rule, lambda: len(ids()) > 1, "it was done and reported twice", 2 * BEAT)
    scene.answer_by(Policy())
    for stream in (first, second):
        if stream.reports:
            stream.send(taken_reports=list(ids()))


STORIES = (
    credit_moves_to_demand,
    work_follows_work,
    module_is_unknown,
    epochs_rise,
    places_are_kept_for_others,
    target_is_not_to_be_called,
    much_comes_at_once,
    execution_ends,
    attempt_has_failed_already,
    revocation_is_repeated,
    revocation_overtakes_its_grant,
    claims,
    grant_arrives_twice,
)
