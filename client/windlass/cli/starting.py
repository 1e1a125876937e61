"""Starts executions: one, or one for each line of a file."""

import json
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from windlass.cli import messages, render
from windlass.cli.arguments import json_object, labels_of, micros_of, text_of
from windlass.cli.connection import Api, command, reason_of
from windlass.cli.events import events_of, telling_how_to_come_back
from windlass.cli.executions import show_execution
from windlass.cli.forms import OutputForm, show, show_line
from windlass.cli.output import say, visible

# A call has at most 1,000 starts, and 4 MiB.
_STARTS_MAX: Final = 1000
_BYTES_MAX: Final = 2 * 1024 * 1024
_WAIT, _WAIT_AT_MOST = "--wait", "--wait-at-most"


class _StartCommand(TyperCommand):
    """`--wait` may be followed by a duration. The parser of options has no option whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for place, (option, value) in enumerate(pairwise(args)):
            # No workflow and no option begins with a digit.
            if option == _WAIT and value[:1].isdigit():
                given[place] = _WAIT_AT_MOST
        return super().parse_args(ctx, given)


def register(app: typer.Typer) -> None:
    command(app, kind=_StartCommand)(start)
    command(app)(start_many)


def start(
    api: Api,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW")],
    input_: Annotated[
        str,
        typer.Option(
            "--input", metavar="JSON", help="The input, a JSON object; @FILE reads a file, @- the standard input."
        ),
    ] = "{}",
    version: Annotated[int, typer.Option(help="The version to start; 0 is the newest.", min=0)] = 0,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; repeat it for more.")] = None,
    priority: Annotated[int, typer.Option(help="From 1 to 5; a higher one begins earlier.", min=1, max=5)] = 3,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="After this time, like 30s or 2h, it ends as TIMEOUT.")
    ] = "",
    same_as: Annotated[
        str, typer.Option("--request-id", help="A second start with the same id starts nothing new.")
    ] = "",
    wait: Annotated[
        bool,
        typer.Option(_WAIT, help="Wait for the end, or as long as --wait 30s says. Exit code 1 unless it is SUCCESS."),
    ] = False,
    wait_at_most: Annotated[str, typer.Option(_WAIT_AT_MOST, hidden=True)] = "",
    output_form: OutputForm = "table",
) -> None:
    """Start an execution.

    \b
    Examples:
      windlass start take-order --input '{"item": "A kettle", "price": 30}' --wait 30s
      windlass start take-order --input @order.json --request-id order-7 --label region=eu
    """
    request = messages.StartExecutionRequest(
        workflow=workflow,
        version=version,
        input=json_object(input_, "--input"),
        labels=labels_of(label or ()),
        priority=priority,
        request_id=same_as or str(uuid.uuid4()),
    )
    if timeout:
        request.timeout.FromMicroseconds(micros_of(timeout, "--timeout"))
    until = time.monotonic() + micros_of(wait_at_most, _WAIT) / 1e6 if wait_at_most else None
    execution = api.call(request).execution
    if wait or wait_at_most:
        with telling_how_to_come_back(api, execution.id):
            for _event in events_of(api, execution.id, until=until):
                pass
            execution = api.call(messages.GetExecutionRequest(execution_id=execution.id)).execution
    show(execution, output_form, show_execution)
    is_awaited = wait or wait_at_most
    raise typer.Exit(1 if is_awaited and render.cell(execution, "state") != "SUCCESS" else 0)


def start_many(
    api: Api,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help='Lines like {"workflow": "w", "input": {}}; - is the standard input.')
    ],
    workflow: Annotated[str, typer.Option(help="The workflow of the lines that name none.")] = "",
    output_form: OutputForm = "table",
) -> None:
    """Start an execution for each line of a file.

    A line has the fields of StartExecutionRequest as JSON. A line that is refused does not keep the others from being
    started; the exit code is then 1."""
    requests = _requests_in(text_of(f"@{file}", "FILE"), workflow)
    refused, lines = 0, iter(requests)
    for batch in _batches(list(requests.values())):
        for item in api.call(messages.BatchStartExecutionsRequest(requests=batch)).items:
            number = next(lines)
            if item.HasField("result"):
                show_line(item.result.execution, output_form, _show_started)
                continue
            refused += 1
            said = f"line {number}: {item.status.message} ({reason_of(item.status)})"
            say(visible(said), err=True)
    raise typer.Exit(1 if refused else 0)


def _requests_in(text: str, workflow: str) -> dict[int, Any]:
    """By the numbers of their lines. Each has a request id, so that a repeat of the call starts nothing twice."""
    from google.protobuf.json_format import ParseDict, ParseError

    found: dict[int, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            request = ParseDict(_fields_of(json.loads(line)), messages.StartExecutionRequest())
        except json.JSONDecodeError as fault:
            # Its own message counts lines, of which there is one here.
            why = f"{fault.msg} at character {fault.pos + 1}"
            raise typer.BadParameter(f"line {number} is not JSON: {why}", param_hint="FILE") from None
        except (ValueError, TypeError, AttributeError, ParseError) as fault:
            raise typer.BadParameter(f"line {number} is no request to start: {fault}", param_hint="FILE") from None
        request.workflow = request.workflow or workflow
        request.request_id = request.request_id or str(uuid.uuid4())
        found[number] = request
    return found


def _fields_of(value: Any) -> dict[str, Any]:
    """The JSON of a request. Raises TypeError in plainer words than protobuf."""
    if not isinstance(value, dict):
        raise TypeError('a line is an object, like {"workflow": "w", "input": {}}')
    fields = messages.StartExecutionRequest.DESCRIPTOR.fields
    unknown = value.keys() - {name for field in fields for name in (field.name, field.json_name)}
    if unknown:
        raise TypeError(f"it has no field {min(unknown)!r}, but {', '.join(field.json_name for field in fields)}")
    return value


def _batches(requests: list[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    size_bytes = 0
    for request in requests:
        if batch and (len(batch) == _STARTS_MAX or size_bytes + request.ByteSize() > _BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(request)
        size_bytes += request.ByteSize()
    if batch:
        yield batch


def _show_started(execution: Any) -> None:
    say(f"{execution.id} {render.cell(execution, 'state')}")
