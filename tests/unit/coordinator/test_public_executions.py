"""Events and rows are translated to the records that api reads."""

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from services.coordinator.core.events import Consequences, ExecutionStarted, RunSucceeded, WaitKind, WaitStarted
from services.coordinator.core.projection import RUN_COLUMNS, run_row
from services.coordinator.core.retry import DEATHS_MAX, DEFAULT_RETRY
from services.coordinator.core.values import ErrorClass, Origin, OutputRef, WorkKey
from services.coordinator.rpc.public_executions import details, event_record, past_record, put_time, run_record
from tests.support.story import Story, begun, edge, node, the_event
from windlass.api.v1 import resources_pb2 as api

LAST_SECOND = 253_402_300_799_000_000


def started() -> ExecutionStarted:
    return ExecutionStarted(
        time=1,
        epoch=7,
        holder="coordinator-0",
        origin=Origin(
            workspace="w",
            workflow="f",
            version=2,
            version_id="v",
            input=b'{"a": [1]}',
            labels=(("region", "eu"),),
            create_time=1_700_000_000_000_000,
            traceparent="00-secret",
        ),
        grant_time=0,
        deadline_time=0,
        retry=DEFAULT_RETRY,
        then=Consequences(ready=(WorkKey("a"), WorkKey("b"))),
    )


def test_an_execution_that_went_on_after_an_event_names_what_had_ended_and_what_was_under_way() -> None:
    story = begun(node("a"), node("b"), node("c"), edges=(edge("a", "c"),))
    story.later(2)
    story.succeed("a")
    execution, now = story.execution, story.now
    shown = past_record(execution, now, "").execution
    assert (list(shown.summary.succeeded), list(shown.summary.running)) == (["a"], ["b"])
    assert list(shown.summary.cancelled) == [], "c may still begin"
    assert shown.metrics.duration.ToMicroseconds() == now - execution.start_time, "its time ends with the event"


def test_an_execution_that_was_paused_after_an_event_says_who_had_paused_it() -> None:
    story = begun(node("a"), node("b"))
    story.succeed("a")
    story.pause()
    shown = past_record(story.execution, story.now, "").execution
    assert shown.pause.caller
    assert (list(shown.summary.succeeded), list(shown.summary.cancelled)) == (["a"], [])


def test_an_execution_that_had_ended_after_an_event_has_each_node_in_one_list() -> None:
    story = begun(node("a"), node("b"))
    story.succeed("a")
    story.cancel()
    story.stopped("b")
    shown = past_record(story.execution, story.now + 1, "").execution
    assert (list(shown.summary.succeeded), list(shown.summary.cancelled)) == (["a"], ["b"])
    assert list(shown.summary.running) == []


def test_details_are_json_with_payloads_as_they_are() -> None:
    shown = orjson.loads(details(started()))
    assert shown["input"] == {"a": [1]}
    assert shown["labels"] == {"region": "eu"}
    assert shown["createTime"] == "2023-11-14T22:13:20Z"
    assert shown["deadlineTime"] is None
    assert shown["then"] == {"ready": ["a", "b"]}
    assert shown["retry"]["initialDelay"] == "1s"
    assert "traceparent" not in shown


@pytest.mark.parametrize(
    ("due_time", "shown"),
    [
        (1_700_000_000_000_001, "2023-11-14T22:13:20.000001Z"),
        (LAST_SECOND, "9999-12-31T23:59:59Z"),
        (LAST_SECOND + 999_999, "9999-12-31T23:59:59.999999Z"),
        (LAST_SECOND + 1_000_000, "9999-12-31T23:59:59.999999Z"),
        (LAST_SECOND * 1_000_000, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_any_instant_of_a_journal_is_shown(due_time: int, shown: str) -> None:
    event = WaitStarted(time=5, key=WorkKey("s"), run=1, kind=WaitKind.TIMER, due_time=due_time)
    assert orjson.loads(details(event))["dueTime"] == shown


def test_time_that_no_timestamp_holds_is_put_as_the_last() -> None:
    message = Timestamp()
    put_time(message, LAST_SECOND + 3_600_000_000)
    assert message.ToJsonString() == "9999-12-31T23:59:59.999999Z"


def test_the_work_that_a_stop_leaves_undone_is_not_in_the_history() -> None:
    story = Story([node("a")])
    story.start()
    (ordered, _) = story.cancel().events
    assert ordered.cancelled == (WorkKey("a"),)
    assert orjson.loads(details(ordered)).keys() == {"outcome", "error", "answerByTime", "messageId", "caller"}


def test_event_names_the_node_and_the_run() -> None:
    output = OutputRef("k", "ab" * 32, 300_000)
    event = RunSucceeded(
        time=5, key=WorkKey("c"), run=3, output=output, branch="", start_time=1, end_time=2,
        inputs_hash=b"\x01\x02", config_hash=b"", cost_tokens=0, then=Consequences(edges=b"\0"),
    )  # fmt: skip
    record = event_record(event, "e1", 9, 7)
    assert (record.event.node, record.event.run_id, record.event.seq) == ("c", "e1.3", 9)
    shown = orjson.loads(record.details)
    assert shown["output"] == {"key": "k", "sha256": "ab" * 32, "sizeBytes": 300_000}
    assert shown["inputsHash"] == "0102"


def test_an_error_is_spelt_out() -> None:
    story = begun(node("a"))
    shown = orjson.loads(details(the_event("RunFailed", story.fail("a"))))
    assert shown["error"] == {"errorClass": "PERMANENT", "type": "BOOM", "message": "a went wrong 42 times"}
    assert (shown["reason"], shown["key"]) == ("PERMANENT_ERROR", {"node": "a", "iteration": 0, "generation": 1})


def test_event_shows_running_until_the_one_that_ends_the_execution() -> None:
    story = Story([node("nap", "sleep@1", config={"duration": "3600s"}), node("a")], [edge("nap", "a")])
    story.start()
    assert story.state == "WAITING"
    story.cancel()
    states = {type(event).__name__: event_record(event, "e1", 1, 1).event.state for event in story.journal}
    assert states.pop("ExecutionFinished") == api.Execution.CANCELLED
    assert {"ExecutionStarted", "WaitStarted"} <= states.keys()
    assert set(states.values()) == {api.Execution.RUNNING}


@pytest.mark.parametrize("error_class", ErrorClass)
def test_class_of_an_error_is_shown_in_the_word_it_was_given_in(error_class: ErrorClass) -> None:
    story = begun(node("a"))
    story.fail("a", error_class)
    assert MessageToDict(shown_error(story, "a"))["class"] == error_class.value


def shown_error(story: Story, node_id: str) -> api.Run.Error:
    run = story.run(node_id)
    row = dict(zip(RUN_COLUMNS, run_row(story.execution, run), strict=True))
    more = {"execution_traceparent": "", "workspace": "w", "lease_time": None, "effect_key": ""}
    return run_record(row | more).run.error


def of_dead_runners(*instances: str, module: str = "noop@1") -> api.Run.Error:
    story = Story([node("a", module)])
    story.start()
    for instance in instances:
        story.assign("a", instance=instance)
        story.lose(instance)
    return shown_error(story, "a")


def test_death_and_poison_have_fingerprints_of_their_own_whichever_runner_it_was() -> None:
    lost = of_dead_runners("blue")
    assert lost.type == "RUNNER_LOST"
    assert len(lost.fingerprint) == 16
    assert of_dead_runners("green").fingerprint == lost.fingerprint
    assert of_dead_runners("blue", module="transform@1").fingerprint != lost.fingerprint
    poison = of_dead_runners(*(f"blue-{number}" for number in range(DEATHS_MAX)))
    assert (poison.type, len(poison.fingerprint)) == ("POISON", 16)
    assert poison.fingerprint != lost.fingerprint


def test_failure_keeps_the_fingerprint_of_its_record() -> None:
    story = begun(node("a"))
    story.fail("a")
    assert shown_error(story, "a").fingerprint == story.run("a").fingerprint != ""
