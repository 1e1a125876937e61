"""Executions: start, watch, look, signal."""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from windlass.cli import messages, render
from windlass.cli.connection import TRY_AGAIN_SECONDS, Api, JsonOption, command
from windlass.cli.output import say, visible

_FILTER_HELP = """Only those for which this is true, like (state = FAILED OR error:type) AND workflow = "in*" AND NOT
labels.region = eu. OR binds tighter than AND. docs/filters.md has the fields."""
# Of the children of an execution that is shown.
CHILDREN_SHOWN_MAX = 20
IdArgument = Annotated[str, typer.Argument(metavar="EXECUTION_ID")]


def register(app: typer.Typer) -> None:
    command(app)(start)
    command(app)(watch)
    command(app)(get)
    command(app, shows=lambda explanation: say(explanation.text))(explain)
    command(app, shows=_show)(signal)
    command(app)(events)
    command(app, shows=lambda answer: show_runs(answer.runs))(runs)
    command(app, "list", shows=render.listing("executions", COLUMNS))(list_)


def start(
    api: Api,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW")],
    input_: Annotated[
        str, typer.Option("--input", metavar="JSON", help="The input, a JSON object; @FILE reads it from a file.")
    ] = "{}",
    version: Annotated[int, typer.Option(help="The version to start; 0 is the newest.", min=0)] = 0,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; repeat it for more.")] = None,
    priority: Annotated[int, typer.Option(help="From 1 to 5; a higher one begins earlier.", min=1, max=5)] = 3,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="After this time it ends as TIMEOUT.", min=0.001)
    ] = None,
    same_as: Annotated[
        str, typer.Option("--request-id", help="A second start with the same id starts nothing new.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end. Exit code 1 unless it is SUCCESS.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start an execution."""
    values, labels = json_object(input_, "--input"), _labels(label or ())
    request = messages.StartExecutionRequest(
        workflow=workflow,
        version=version,
        input=values,
        labels=labels,
        priority=priority,
        request_id=same_as or str(uuid.uuid4()),
    )
    if timeout is not None:
        request.timeout.FromNanoseconds(round(timeout * 1e9))
    execution = api.call(request).execution
    if wait:
        for _event in events_of(api, execution.id):
            pass
        execution = api.call(messages.GetExecutionRequest(execution_id=execution.id)).execution
    show = render.print_json if as_json else _show
    show(execution)
    raise typer.Exit(1 if wait and render.cell(execution, "state") != "SUCCESS" else 0)


def watch(
    api: Api,
    execution_id: IdArgument,
    after_seq: Annotated[int, typer.Option(help="Begin after the event with this number.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Follow the events of an execution to its end. Exit code 1 unless it ends in SUCCESS."""
    last = None
    for event in events_of(api, execution_id, after_seq):
        last = event
        _show_event(event, as_json=as_json)
    raise typer.Exit(0 if last is None or render.cell(last, "state") == "SUCCESS" else 1)


def get(
    api: Api,
    execution_id: IdArgument,
    as_of_seq: Annotated[int, typer.Option(help="As it was after the event with this number.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show an execution and its result. While it goes on, also show the children that it waits for."""
    execution = api.call(messages.GetExecutionRequest(execution_id=execution_id, as_of_seq=as_of_seq)).execution
    if as_json:
        render.print_json(execution)
        return
    _show(execution)
    if not execution.HasField("end_time") and not as_of_seq:
        _show_children(api, execution_id)


def _show_children(api: Api, execution_id: str) -> None:
    going = " OR ".join(f"state = {state}" for state in ("PENDING", "RUNNING", "WAITING", "PAUSED"))
    filter_ = f'parent_execution_id = "{execution_id}" AND ({going})'
    answer = api.call(messages.ListExecutionsRequest(filter=filter_, page_size=CHILDREN_SHOWN_MAX))
    if answer.executions:
        say()
        say("children")
        render.table(answer.executions, COLUMNS)
    if answer.next_page_token:
        say(f"and more: windlass list --filter 'parent_execution_id = \"{execution_id}\"'")


def explain(api: Api, execution_id: IdArgument) -> Any:
    """Say what an execution waits for, and where its time went."""
    return api.call(messages.ExplainExecutionRequest(execution_id=execution_id)).explanation


def list_(
    api: Api,
    filter_: Annotated[str, typer.Option("--filter", help=_FILTER_HELP)] = "",
    limit: Annotated[int, typer.Option(help="The most to list.", min=1, max=1000)] = 50,
) -> Any:
    """List executions, newest first."""
    return api.call(messages.ListExecutionsRequest(filter=filter_, page_size=limit))


def signal(
    api: Api,
    execution_id: IdArgument,
    name: Annotated[str, typer.Argument(metavar="SIGNAL")],
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="A JSON object; @FILE reads it from a file.")
    ] = "{}",
    same_as: Annotated[
        str, typer.Option("--request-id", help="A second signal with the same id is not delivered again.")
    ] = "",
) -> Any:
    """Send a signal to an execution.

    The node that waits for it goes on with the payload."""
    values = json_object(payload, "--payload")
    request_id = same_as or str(uuid.uuid4())
    request = messages.SignalExecutionRequest(
        execution_id=execution_id, signal=name, payload=values, request_id=request_id
    )
    return api.call(request).execution


def runs(api: Api, execution_id: IdArgument) -> Any:
    """List every attempt at every node, and when it ran."""
    return api.whole(messages.ListRunsRequest(execution_id=execution_id, page_size=1000))


def events(api: Api, execution_id: IdArgument, as_json: JsonOption = False) -> None:
    """Print the journal of an execution as far as it has come."""
    request = messages.ListEventsRequest(execution_id=execution_id, page_size=1000)
    while True:
        answer = api.call(request)
        for event in answer.events:
            _show_event(event, as_json=as_json)
        request.page_token = answer.next_page_token
        if not request.page_token:
            return


def _run_error(run: Any) -> str:
    return f"{run.error.type}: {run.error.message}" if run.error.type else ""


COLUMNS: render.Columns = {
    "execution": "id",
    "workflow": lambda execution: f"{execution.workflow}@{execution.version}",
    "state": "state",
    "created": "create_time",
    "took": "metrics.duration",
}
RUN_COLUMNS: render.Columns = {
    "run": lambda run: run.id.rpartition(".")[2],
    "node": render.work_name,
    "module": "module",
    "attempt": lambda run: str(run.attempt or ""),
    "state": "state",
    "began": lambda run: render.clock(run.start_time),
    "took": "duration",
    "runner": "runner",
    "error": _run_error,
}


def show_runs(found: Any) -> None:
    """A table of attempts and, below it, their timeline."""
    render.table(found, RUN_COLUMNS)
    say()
    render.timeline(found)


def events_of(api: Api, execution_id: str, after_seq: int = 0) -> Iterator[Any]:
    """Every event once and in order; after the loss of a stream the next one continues behind its last event."""
    import grpc

    from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub

    stub: Any = ExecutionServiceStub(api.channel)
    failures = 0
    while True:
        try:
            request = messages.WatchExecutionRequest(execution_id=execution_id, after_seq=after_seq)
            for answer in stub.WatchExecution(request, metadata=api.metadata()):
                failures, after_seq = 0, answer.event.seq
                yield answer.event
            return
        except grpc.RpcError as error:
            failures += 1
            if error.code() is not grpc.StatusCode.UNAVAILABLE or failures > 20:
                raise
            time.sleep(TRY_AGAIN_SECONDS)


# The lists of a summary, with their titles, in the order in which they are shown.
_SUMMARY: Final = {
    **{name: name for name in ("running", "succeeded", "failed", "skipped", "blocked", "cancelled")},
    "compensated": "undone",
    "not_compensated": "not undone",
}


def _show(execution: Any) -> None:
    error, metrics = execution.error, execution.metrics
    facts = {
        "execution": execution.id,
        "workflow": f"{execution.workflow}@{execution.version}",
        "state": render.cell(execution, "state"),
        "fork of": execution.origin_execution_id,
        "imported from": execution.imported_execution_id,
        "created": render.date(execution.create_time),
        "took": render.cell(execution, "metrics.duration"),
        "input": render.compact(execution.input),
        "output": render.compact(execution.output) if execution.HasField("output") else "",
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(execution.labels.items())),
        "error": f"{render.node_name(error.node)} {error.type}: {error.message}".strip() if error.type else "",
        "paused": _paused(execution.pause) if execution.HasField("pause") else "",
    }
    for name, title in _SUMMARY.items():
        facts[title] = ", ".join(map(render.node_name, getattr(execution.summary, name)))
    facts["runs"] = render.run_count(metrics.runs, metrics.retries) if metrics.runs else ""
    facts["trace"] = execution.trace_id
    for name, value in facts.items():
        if value:
            render.console().print(f"{name:<10} {render.coloured(value)}", soft_wrap=True)


def _paused(pause: Any) -> str:
    return f"by {pause.caller} since {render.date(pause.time)}{': ' if pause.reason else ''}{pause.reason}"


def _show_event(event: Any, *, as_json: bool) -> None:
    if as_json:
        say(render.compact(event))
        return
    details = render.compact(event.details) if event.details.fields else ""
    subject = f" {render.node_name(event.node)}" if event.node else ""
    say(visible(f"{event.seq:>4}  {render.clock(event.time)}  {event.type}{subject}  {details}".rstrip()))


def json_object(text: str, option: str) -> Any:
    """The value of an option as a Struct. `@FILE` stands for the content of a file."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.struct_pb2 import Struct

    try:
        value = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
        if not isinstance(value, dict):
            raise TypeError('an object has braces, like {"id": 7}')
        return ParseDict(value, Struct())
    except OSError as error:
        raise typer.BadParameter(f"cannot read {text[1:]}: {error.strerror}", param_hint=option) from None
    except (ValueError, TypeError, AttributeError, ParseError) as error:
        raise typer.BadParameter(f"this is not a JSON object: {error}", param_hint=option) from None


def _labels(entries: Any) -> dict[str, str]:
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"{entry!r} is not NAME=VALUE", param_hint="--label")
        found[name] = value
    return found
