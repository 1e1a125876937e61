"""The rules that the conformance kit watches on every frame: a good conversation breaks none, each fault is named."""

from collections.abc import Callable

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from windlass.conformance.coordinator import KitCoordinator, KitStream, Policy
from windlass.conformance.rules import Duty, Judge
from windlass.conformance.scene import KitLease, KitWork, grant_of
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.types.v1 import session_pb2 as types

LEASE = types.Lease(lease_id="e.1", epoch=1)


def attach(**changed: object) -> pb.SessionRequest:
    said = {"holder": "h", "instance_id": "i", "capacity": 10, "modules": ["noop@1"], **changed}
    return pb.SessionRequest(control=types.HolderControl(attach=types.Attach(**said)))  # type: ignore[arg-type]


def control(**parts: object) -> pb.SessionRequest:
    return pb.SessionRequest(control=types.HolderControl(**parts))  # type: ignore[arg-type]


def beat(number: int = 1, *, full: bool = True, held: int = 0, **more: object) -> pb.SessionRequest:
    leases = [LEASE] * held
    return control(beat=types.Beat(number=number, full=full, held=leases, **{"held_count": held, **more}))  # type: ignore[arg-type]


def report(**changed: object) -> pb.SessionRequest:
    head = types.ReportHead(report_id="1", lease_id="e.1", epoch=1)
    said = {"head": head, "succeeded": {"output": {"json": b"{}"}}, **changed}
    return pb.SessionRequest(reports=[pb.RunReport(**said)])  # type: ignore[arg-type]


def told(*frames: pb.SessionRequest, policy: Policy | None = None, has_key: bool = True) -> Judge:
    """The judge after these frames. One grant is sent before the last of them."""
    judge = Judge()
    coordinator = KitCoordinator("coordinator-0", lambda: "key", judge)
    stream = KitStream(coordinator, has_key, policy or Policy(), opened_at=0.0)
    for frame in frames[:-1]:
        stream.hear(frame, judge)
    stream.send(grants=(grant_of(KitLease("e.1"), KitWork("noop@1")),))
    stream.hear(frames[-1], judge)
    return judge


def test_good_conversation_breaks_no_rule() -> None:
    first = control(credit=types.Credit(number=1, amount=10))
    judge = told(attach(), first, beat(1), beat(2, full=False, held=1), report(), control(grants_seen=1))
    assert judge.breaches == {}
    assert {Duty.ATTACH_FIRST, Duty.BEAT_NUMBER, Duty.REPORT_SUCCESS, Duty.GRANTS_SEEN} <= judge.cases.keys()


FAULTS: list[tuple[Duty, Callable[[], Judge]]] = [
    (Duty.ATTACH_FIRST, lambda: told(beat())),
    (Duty.ATTACH_FIRST, lambda: told(attach(), attach())),
    (Duty.ATTACH_WAITS, lambda: told(attach(), beat(), policy=Policy(answers_attach=False))),
    (Duty.ATTACH_VALID, lambda: told(attach(instance_id=""))),
    (Duty.ATTACH_VALID, lambda: told(attach(capacity=20_001))),
    (Duty.ATTACH_VALID, lambda: told(attach(modules=["noop"]))),
    (Duty.ATTACH_VALID, lambda: told(attach(holder="h" * 256))),
    (Duty.KEY_SENT, lambda: told(attach(), has_key=False)),
    (Duty.BEAT_NUMBER, lambda: told(attach(), beat(2))),
    (Duty.BEAT_IN_FLIGHT, lambda: told(attach(), beat(1), beat(2), policy=Policy(answers_beats=False))),
    (Duty.BEAT_FIRST_FULL, lambda: told(attach(), beat(1, full=False))),
    (Duty.BEAT_COUNT, lambda: told(attach(), beat(1, held=1, held_count=2))),
    (Duty.CREDIT_NUMBER, lambda: told(attach(), control(credit=types.Credit(number=0, amount=1)))),
    (Duty.CREDIT_NUMBER, lambda: told(attach(), control(credit=types.Credit(number=1, amount=100_001)))),
    (Duty.GRANTS_SEEN, lambda: told(attach(), control(grants_seen=2))),
    (Duty.REPORT_HEAD, lambda: told(attach(), report(head=types.ReportHead(lease_id="e.1", epoch=1)))),
    (Duty.REPORT_OUTCOME, lambda: told(attach(), report(succeeded=None))),
    (
        Duty.REPORT_OUTCOME,
        lambda: told(attach(), report(start_time=Timestamp(seconds=2), end_time=Timestamp(seconds=1))),
    ),
    (Duty.REPORT_SUCCESS, lambda: told(attach(), report(succeeded={"output": {"json": b"{"}}))),
    (Duty.REPORT_SUCCESS, lambda: told(attach(), report(succeeded={"output": {"json": b" " * 262_144 + b"1"}}))),
    (Duty.LIMITS, lambda: told(attach(), control(beat=types.Beat(number=1, full=True, gone=["x"] * 30_001)))),
    (Duty.LIMITS, lambda: told(attach(), beat(1, gone=["x" * 256]))),
    (Duty.LIMITS, lambda: told(attach(), report(target="x" * 256))),
    (Duty.LIMITS, lambda: told(attach(), report(succeeded=None, failed={"message": "a\0b"}))),
]


@pytest.mark.parametrize(("rule", "tell"), FAULTS, ids=[f"{rule.name}-{i}" for i, (rule, _) in enumerate(FAULTS)])
def test_fault_in_a_frame_is_named(rule: Duty, tell: Callable[[], Judge]) -> None:
    assert set(tell().breaches) == {rule}


def test_beat_after_want_full_is_full() -> None:
    judge = Judge()
    stream = KitStream(KitCoordinator("c", lambda: "key", judge), True, Policy(answers_beats=False), opened_at=0.0)
    for frame in (attach(), beat(1)):
        stream.hear(frame, judge)
    stream.answer_beat(wants_full=True)
    stream.hear(beat(2, full=False), judge)
    assert set(judge.breaches) == {Duty.BEAT_FULL_WANTED}
