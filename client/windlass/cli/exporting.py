"""Takes executions out of a stack as a file and into another one, and folds journals again."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from windlass.cli import messages
from windlass.cli.arguments import IdArgument
from windlass.cli.connection import Api, command
from windlass.cli.export_text import NotAnExport, line_of, part_of
from windlass.cli.forms import OutputForm, show
from windlass.cli.output import say, visible

_SECONDS: Final = 300.0
# An execution id has none of these.
_LIKE_A_FILE: Final = re.compile(r"[./\\]")
_REQUEST_BYTES: Final = 512 * 1024


def register(app: typer.Typer) -> None:
    command(app)(export)
    command(app, "import")(import_execution)
    command(app)(replay)


def export(
    api: Api,
    execution_id: IdArgument,
    without_outputs: Annotated[
        bool, typer.Option("--without-outputs", help="Leave out the outputs that are too large for the journal.")
    ] = False,
) -> None:
    """Print an execution as a file.

    The file has its definition, its journal, and its large outputs.

    \b
    Examples:
      windlass export EXECUTION_ID > execution.jsonl
    """
    request = messages.ExportExecutionRequest(execution_id=execution_id)
    for answer in _stub(api).ExportExecution(request, metadata=api.metadata(), timeout=_SECONDS):
        for part in answer.parts:
            if without_outputs and part.WhichOneof("part") == "output":
                continue
            say(line_of(part))


def import_execution(
    api: Api,
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="An exported file.")],
    same_as: Annotated[str, typer.Option("--request-id", help="Makes a repeat safe.")] = "",
    output_form: OutputForm = "table",
) -> None:
    """Keep a copy of an exported execution, to look at.

    It can be read like any other execution. Nothing can change it.

    \b
    Examples:
      windlass import execution.jsonl --request-id from-staging-7
    """
    first = messages.ImportExecutionRequest(request_id=same_as or str(uuid.uuid4()))
    answer = _sent(api, _FileRequests(file, first, with_outputs=True), "ImportExecution")
    show(answer, output_form, lambda answer: say(answer.execution.id))


def replay(
    api: Api,
    subject: Annotated[str, typer.Argument(metavar="FILE|EXECUTION_ID", help="An exported file, or an execution.")],
    output_form: OutputForm = "table",
) -> None:
    """Fold a journal again, and compare with what was recorded.

    The present code folds it, and decides it again. Exit code 1 if the state differs."""
    if Path(subject).exists():
        answer = _sent(api, _FileRequests(Path(subject), messages.ReplayExportRequest()), "ReplayExport").replay
    elif _LIKE_A_FILE.search(subject):
        raise typer.BadParameter(f"there is no file {subject}, and an execution id looks otherwise")
    else:
        request = messages.ReplayExecutionRequest(execution_id=subject)
        answer = _stub(api).ReplayExecution(request, metadata=api.metadata(), timeout=_SECONDS).replay
    show(answer, output_form, _show)
    raise typer.Exit(1 if answer.HasField("first_difference") else 0)


def _sent(api: Api, requests: "_FileRequests", method: str) -> Any:
    """The answer to the parts of the file."""
    try:
        return getattr(_stub(api), method)(iter(requests), metadata=api.metadata(), timeout=_SECONDS)
    finally:
        if requests.fault:
            say(visible(requests.fault), err=True)
            raise typer.Exit(1)


def _stub(api: Api) -> Any:
    from windlass.api.v1.exports_pb2_grpc import ExportServiceStub

    return ExportServiceStub(api.channel)


class _FileRequests:
    """The parts of a file in requests of limited size. It ends early at a line that is no part,
    and keeps the fault: gRPC says nothing of what an iterator raises."""

    def __init__(self, file: Path, first: Any, *, with_outputs: bool = False) -> None:
        """`first` is the first request, without its parts."""
        self._file = file
        self._first = first
        self._with_outputs = with_outputs
        self.fault = ""

    def __iter__(self) -> Iterator[Any]:
        request, size_bytes = self._first, 0
        for part in self._parts():
            request.parts.append(part)
            size_bytes += part.ByteSize()
            if size_bytes >= _REQUEST_BYTES:
                yield request
                request, size_bytes = type(self._first)(), 0
        if request.parts:
            yield request

    def _parts(self) -> Iterator[Any]:
        from windlass.journal.v1.export_pb2 import ExportPart

        with self._file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    part = part_of(line, ExportPart())
                except NotAnExport as fault:
                    self.fault = f"line {number} of {self._file}: {fault}"
                    return
                if self._with_outputs or part.WhichOneof("part") != "output":
                    yield part


def _show(replay: Any) -> None:
    of = f"{replay.events} events of {replay.execution_id}"
    if replay.HasField("first_difference"):
        _show_difference("first difference", replay.first_difference)
    elif replay.recorded_hash:
        say(visible(f"{of} add up to what was recorded."))
    else:
        say(visible(f"{of} can be folded. Nothing was recorded to compare with, because it goes on."))
    for title, digest in (("recorded", replay.recorded_hash), ("now", replay.replayed_hash)):
        if digest:
            say(f"{title:<9} {digest}")
    if replay.HasField("decided_otherwise"):
        say("The present code would decide otherwise than it was decided then.")
        _show_difference("first decision", replay.decided_otherwise)
    else:
        say(f"The present code decides {replay.redecided} of the events as they were decided then.")


def _show_difference(title: str, found: Any) -> None:
    say(visible(f"{title}: event {found.seq} ({found.event_type})"))
    say(visible(f"  field     {found.field or 'the event itself'}"))
    say(visible(f"  recorded  {found.recorded or '-'}"))
    say(visible(f"  now       {found.replayed or '-'}"))
