"""The answer of ExplainExecution, put together from what coordinators and the queue say."""

from google.protobuf.timestamp_pb2 import Timestamp

from services.api.rpc.explanations import explanation_of
from windlass.api.v1.resources_pb2 import Execution, Explanation
from windlass.dispatcher.v1.queue_pb2 import GetQueuePlaceResponse, Queued

NOW = 1_800_000_000
CREATED = Timestamp(seconds=NOW - 10)
NOT_QUEUED = GetQueuePlaceResponse()


def explain(
    told: Explanation | None, place: GetQueuePlaceResponse = NOT_QUEUED, state: str = "RUNNING", **more: object
) -> Explanation:
    execution = Execution(id="e1", create_time=CREATED, state=Execution.State.Value(state), **more)  # type: ignore[arg-type]
    return explanation_of(execution, told, place, NOW * 1_000_000)


def told(**seconds: float) -> Explanation:
    """What coordinators say: the time by its causes."""
    explanation = Explanation()
    for cause, span in seconds.items():
        explanation.time_split.add(cause=Explanation.Cause.Value(cause)).duration.FromNanoseconds(int(span * 1e9))
    return explanation


def queued(**more: object) -> GetQueuePlaceResponse:
    return GetQueuePlaceResponse(state=Queued.PENDING, enqueue_time=CREATED, **more)  # type: ignore[arg-type]


def test_an_execution_in_the_queue_says_who_has_the_slots_and_how_many_are_before_it():
    found = explain(None, queued(slots_taken=1, slots_max=1, ahead=2, holders=["e0"]), "PENDING")
    (blocker,) = found.blockers
    assert Explanation.Cause.Name(blocker.kind) == "QUEUED_FOR_SLOT"
    assert blocker.message == "1 of 1 slots of the workspace are taken, by e0; 2 executions are before it in the queue"
    assert [(Explanation.Cause.Name(each.cause), each.share) for each in found.time_split] == [("QUEUED_FOR_SLOT", 1.0)]
    assert "for 10.0 s" in found.text


def test_with_a_free_slot_it_waits_for_a_coordinator():
    (blocker,) = explain(None, queued(slots_taken=0, slots_max=5), "PENDING").blockers
    assert Explanation.Cause.Name(blocker.kind) == "QUEUED_FOR_COORDINATOR"


def test_an_execution_that_was_woken_waits_in_the_queue_since_then():
    woken = Timestamp(seconds=NOW - 4)
    place = queued(slots_taken=1, slots_max=1, wake_time=woken)
    found = explain(told(SLEEPING=3, QUEUED_FOR_SLOT=1), place, "WAITING")
    (blocker,) = found.blockers
    assert (Explanation.Cause.Name(blocker.kind), blocker.since_time) == ("QUEUED_FOR_SLOT", woken)
    split = [(Explanation.Cause.Name(each.cause), each.duration.seconds) for each in found.time_split]
    assert split == [("QUEUED_FOR_SLOT", 5), ("SLEEPING", 3)]


def test_an_execution_whose_coordinator_has_died_waits_in_the_queue_without_a_time_of_its_own():
    """Its time until now is told by the journal."""
    found = explain(told(RUNNING=3), queued(slots_max=1), "RUNNING")
    assert [Explanation.Cause.Name(each.kind) for each in found.blockers] == ["QUEUED_FOR_COORDINATOR"]
    assert [Explanation.Cause.Name(each.cause) for each in found.time_split] == ["RUNNING"]


def test_shares_add_up_to_one_and_the_largest_comes_first():
    found = explain(told(RUNNING=1, SLEEPING=6, ENGINE=0, BACKOFF=2))
    assert [Explanation.Cause.Name(each.cause) for each in found.time_split] == ["SLEEPING", "BACKOFF", "RUNNING"]
    assert abs(sum(each.share for each in found.time_split) - 1) < 1e-9


def test_a_blocker_comes_with_its_times_and_with_the_command_of_its_coordinator():
    explanation = told(RUNNING=1)
    more = {"node": "a", "message": "a failed and is tried again", "try": "windlass runs e1"}
    blocker = explanation.blockers.add(kind=Explanation.BACKOFF, **more)
    blocker.since_time.seconds, blocker.until_time.seconds = NOW - 300, NOW
    found = explain(explanation)
    line = "BACKOFF (for 5 min, until 2027-01-15T08:00:00Z): a failed and is tried again"
    assert f"  {line}\n    try: windlass runs e1\n" in found.text


def test_an_execution_that_has_ended_says_why_and_where_its_time_went():
    error = Execution.Error(node="pay", type="HTTP_500", message="no")
    text = explain(told(RUNNING=0.5, SLEEPING=36_000), state="FAILED", error=error).text
    assert text.splitlines()[0] == "e1 ended as FAILED at pay: HTTP_500: no"
    assert "10.0 h  SLEEPING" in text
    assert "500 ms  RUNNING" in text
    assert explain(told(RUNNING=1), state="SUCCESS").text.startswith("e1 ended as SUCCESS.\n")


def test_a_cancel_is_told_once_with_its_reason_if_it_has_one():
    for message, said in (("wrong input", "e1 ended as CANCELLED: wrong input"), ("", "e1 ended as CANCELLED.")):
        error = Execution.Error(type="CANCELLED", message=message)
        assert explain(told(RUNNING=1), state="CANCELLED", error=error).text.splitlines()[0] == said


def test_an_execution_that_nothing_holds_up_says_so():
    assert explain(Explanation()).text == "e1 is RUNNING. Nothing holds it up."


def test_a_message_of_several_lines_stays_on_one() -> None:
    error = Execution.Error(node="pay", type="BOOM", message="no\nIts time:\n  100 %")
    assert explain(told(RUNNING=1), state="FAILED", error=error).text.splitlines()[0] == (
        "e1 ended as FAILED at pay: BOOM: no Its time: 100 %"
    )


def test_signals_that_are_kept_are_named_with_their_number_and_their_age():
    explanation = told(WAITING_FOR_SIGNAL=10)
    for signal, count, seconds in (("paid\n", 1, 4), ("go", 3, 2)):
        explanation.kept_signals.add(signal=signal, count=count).oldest_time.seconds = NOW - seconds
    lines = ["  paid: came 4.0 s ago", "  go: 3 of them, the first came 2.0 s ago"]
    text = explain(explanation).text
    assert "\n".join(["Signals that are kept until a node waits for them:", *lines, "Its time so far:"]) in text
    assert "\n".join(["Signals that no node took:", *lines, "Its time:"]) in explain(explanation, state="FAILED").text


def test_an_end_that_is_no_success_names_the_command_that_shows_its_attempts():
    error = Execution.Error(node="pay", type="BOOM", message="no money")
    assert explain(told(RUNNING=3), state="FAILED", error=error).text.startswith(
        "e1 ended as FAILED at pay: BOOM: no money\n    try: windlass runs e1\nIts time:"
    )
    assert explain(told(RUNNING=3), state="SUCCESS").text.startswith("e1 ended as SUCCESS.\nIts time:")
