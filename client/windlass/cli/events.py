"""The events of executions: those that there are, and those that come."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import IdArgument
from windlass.cli.connection import TRY_AGAIN_SECONDS, Api, command
from windlass.cli.forms import OutputForm, show_line
from windlass.cli.output import say, visible, visible_json

INTERRUPTED: Final = 130
AfterOption = Annotated[int, typer.Option("--after-seq", help="Begin after the event with this number.", min=0)]


def register(app: typer.Typer) -> None:
    command(app)(watch)
    command(app)(events)


def watch(api: Api, execution_id: IdArgument, after_seq: AfterOption = 0, output_form: OutputForm = "table") -> None:
    """Follow the events of an execution to its end. Exit code 1 unless it ends in SUCCESS."""
    last = None
    with telling_how_to_come_back(api, execution_id):
        for event in events_of(api, execution_id, after_seq):
            last = event
            show_line(event, output_form, _show_event)
    raise typer.Exit(0 if last is None or render.cell(last, "state") == "SUCCESS" else 1)


def events(
    api: Api,
    execution_id: IdArgument,
    after_seq: AfterOption = 0,
    as_of_seq: Annotated[int, typer.Option(help="End with the event of this number; 0 is the newest.", min=0)] = 0,
    output_form: OutputForm = "table",
) -> None:
    """Print the journal of an execution as far as it has come.

    \b
    Examples:
      windlass events EXECUTION_ID
      windlass events EXECUTION_ID --after-seq 100 --as-of-seq 120 -o json
    """
    if as_of_seq and as_of_seq <= after_seq:
        raise typer.BadParameter(f"no event is after {after_seq} and up to {as_of_seq}", param_hint="--as-of-seq")
    request = messages.ListEventsRequest(
        execution_id=execution_id, after_seq=after_seq, as_of_seq=as_of_seq, page_size=1000
    )
    last_seq = 0
    while True:
        answer = api.call(request)
        for event in answer.events:
            last_seq = event.seq
            show_line(event, output_form, _show_event)
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    if last_seq < as_of_seq or not last_seq:
        tell_newest(last_seq or api.call(messages.GetExecutionRequest(execution_id=execution_id)).execution.last_seq)


def tell_newest(last_seq: int) -> None:
    """Say why what was asked for is not shown: the journal does not go so far. This is no part of the answer."""
    say(f"the newest event is number {last_seq}" if last_seq else "it has no events yet", err=True)


@contextlib.contextmanager
def hearing_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt again every second until it has come through. Python swallows it if the signal arrives
    while a callback of gRPC runs, and whoever waits would have to press Ctrl-C once more. Only the main thread of a
    process can set handlers of signals, and only there does Python raise them: in any other thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        signal.alarm(1)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def telling_how_to_come_back(api: Api, execution_id: str) -> Iterator[None]:
    """Say after Ctrl-C that the execution goes on."""
    try:
        with hearing_interrupts():
            yield
    except KeyboardInterrupt:
        say("the execution goes on without you", err=True)
        say(f"to come back: {api.typed(f'windlass watch {execution_id}')}", err=True)
        say(f"to stop it:   {api.typed(f'windlass cancel {execution_id}')}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def events_of(api: Api, execution_id: str, after_seq: int = 0, until: float | None = None) -> Iterator[Any]:
    """Every event once and in order; after the loss of a stream the next one continues behind its last event. They end
    at the monotonic time `until` if the execution has not ended by then."""
    import grpc

    from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub

    stub: Any = ExecutionServiceStub(api.channel)
    failures = 0
    while until is None or time.monotonic() < until:
        try:
            request = messages.WatchExecutionRequest(execution_id=execution_id, after_seq=after_seq)
            timeout = None if until is None else until - time.monotonic()
            for answer in stub.WatchExecution(request, metadata=api.metadata(), timeout=timeout):
                failures, after_seq = 0, answer.event.seq
                yield answer.event
            return
        except grpc.RpcError as error:
            if until is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return
            failures += 1
            if error.code() is not grpc.StatusCode.UNAVAILABLE or failures > 20:
                raise
            time.sleep(TRY_AGAIN_SECONDS)


def _show_event(event: Any) -> None:
    """On one line. Details that are null or empty are left out for people; the other forms have all."""
    told = {name: value for name, value in render.plain(event.details).items() if value not in (None, "", {}, [])}
    details = visible_json(json.dumps(told, ensure_ascii=False)) if told else ""
    subject = f" {render.node_name(event.node)}" if event.node else ""
    say(visible(f"{event.seq:>4}  {render.clock(event.time)}  {event.type}{subject}  {details}".rstrip()))
