"""DeadLetterService: lists and resolves dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.struct_pb2 import Struct

from services.api.app import refusals
from services.api.app.commands import NewCommand
from services.api.app.dead_letters import DeadLetters
from services.api.app.identifiers import is_execution_id
from services.api.app.letter_outcomes import LetterOutcomes
from services.api.app.ports import PAGE_SIZE_MAX, DeadLetterQuery, DeadLetterView
from services.api.app.redriving import Redrive, Redriver
from services.api.core.redriving import LaterOutcome
from services.api.rpc import translate
from services.api.rpc.filter_text import conditions_of
from services.api.rpc.filters import FieldKind, FilterFields, hold
from services.api.rpc.letter_groups import merged_groups
from services.api.rpc.letter_inputs import LetterInputs
from services.api.rpc.overrides import OVERRIDES_BYTES_MAX
from services.api.rpc.pages import Page
from services.api.rpc.structs import holding, sorted_json, to_dict, to_json
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import caller
from windlass.api.v1 import dead_letters_pb2 as pb
from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceServicer

_ORDERS: Final = {"": False, "quarantine_time desc": False, "quarantine_time": True, "quarantine_time asc": True}
_KINDS: Final[Mapping[str, FieldKind]] = {
    "execution_id": FieldKind.TEXT,
    "workflow": FieldKind.TEXT,
    "version": FieldKind.NUMBER,
    "node": FieldKind.TEXT,
    "module": FieldKind.TEXT,
    "reason": FieldKind.TEXT,
    "resolution": FieldKind.TEXT,
    "reviewer": FieldKind.TEXT,
    "error.type": FieldKind.TEXT,
    "error.message": FieldKind.TEXT,
    "error.fingerprint": FieldKind.TEXT,
    "quarantine_time": FieldKind.TIME,
}
_FIELDS: Final = FilterFields(_KINDS, frozenset(), {}, has_labels=False)


class DeadLetterServicer(DeadLetterServiceServicer):
    def __init__(
        self, dead_letters: DeadLetters, redriver: Redriver, outcomes: LetterOutcomes, inputs: LetterInputs
    ) -> None:
        self._dead_letters = dead_letters
        self._redriver = redriver
        self._outcomes = outcomes
        self._inputs = inputs

    async def ListDeadLetters(self, request: pb.ListDeadLettersRequest, context: RpcCall) -> pb.ListDeadLettersResponse:
        conditions = conditions_of(request.filter, _FIELDS)
        ascending = _ORDERS.get(" ".join(request.order_by.split()))
        if ascending is None:
            raise refusals.invalid_field("order_by", "UNKNOWN_VALUE", "must be quarantine_time or quarantine_time desc")
        workspace = caller().workspace
        page = Page(request, "dead letters", workspace, request.filter, str(ascending))
        asked = DeadLetterQuery(workspace, conditions, _place(page.after), ascending, page.size + 1)
        found = await self._dead_letters.page(asked, lambda letter: hold(conditions, _fields(letter.record)))
        shown, token = page.cut(found, _place_text, lambda letter: letter.record)
        return holding(pb.ListDeadLettersResponse, dead_letters=shown, next_page_token=token)

    async def ListDeadLetterGroups(
        self, request: pb.ListDeadLetterGroupsRequest, context: RpcCall
    ) -> pb.ListDeadLetterGroupsResponse:
        conditions = conditions_of(request.filter, _FIELDS)
        asked = DeadLetterQuery(caller().workspace, conditions, None, ascending=False, limit=PAGE_SIZE_MAX)
        found = await self._dead_letters.groups(asked, lambda letter: hold(conditions, _fields(letter.record)))
        return holding(pb.ListDeadLetterGroupsResponse, groups=merged_groups(*found, limit=PAGE_SIZE_MAX))

    async def GetDeadLetter(self, request: pb.GetDeadLetterRequest, context: RpcCall) -> pb.GetDeadLetterResponse:
        letter = await self._dead_letters.find(caller().workspace, request.dead_letter_id)
        return holding(pb.GetDeadLetterResponse, dead_letter=await self._inputs.shown(caller().workspace, letter))

    async def RequeueDeadLetter(
        self, request: pb.RequeueDeadLetterRequest, context: RpcCall
    ) -> pb.RequeueDeadLetterResponse:
        overrides = await _overrides(request.input_overrides)
        letter = await self._requeue(request.dead_letter_id, overrides, request.notes, request.request_id)
        return holding(pb.RequeueDeadLetterResponse, dead_letter=letter.record)

    async def _requeue(self, letter_id: str, overrides: bytes, notes: str, request_id: str = "") -> DeadLetterView:
        identity = caller()
        if is_execution_id(letter_id):
            if overrides:
                told = "an execution that could not be admitted has no node over whose inputs they could be laid"
                raise refusals.invalid_field("input_overrides", "NOT_TAKEN", told)
            return await self._dead_letters.requeue_failed(
                identity.workspace, letter_id, identity.title, notes, request_id
            )
        message = translate.command()
        message.requeue.run, message.requeue.notes = _number(letter_id), notes
        message.requeue.input_overrides = overrides
        command = _command("requeue", letter_id, message, request_id)
        return await self._dead_letters.resolve(identity.workspace, letter_id, "REQUEUED", command)

    async def DiscardDeadLetter(
        self, request: pb.DiscardDeadLetterRequest, context: RpcCall
    ) -> pb.DiscardDeadLetterResponse:
        letter = await self._discard(request.dead_letter_id, request.notes)
        return holding(pb.DiscardDeadLetterResponse, dead_letter=letter.record)

    async def _discard(self, letter_id: str, notes: str) -> DeadLetterView:
        identity = caller()
        if is_execution_id(letter_id):
            return await self._dead_letters.discard_failed(identity.workspace, letter_id, identity.title, notes)
        message = translate.command()
        message.discard.run, message.discard.notes = _number(letter_id), notes
        command = _command("discard", letter_id, message)
        return await self._dead_letters.resolve(identity.workspace, letter_id, "DISCARDED", command)

    async def BulkResolveDeadLetters(
        self, request: pb.BulkResolveDeadLettersRequest, context: RpcCall
    ) -> AsyncIterator[pb.BulkResolveDeadLettersResponse]:
        conditions = conditions_of(request.filter, _FIELDS)
        overrides = await _overrides(request.input_overrides)
        asked = DeadLetterQuery(caller().workspace, conditions, None, ascending=True, limit=PAGE_SIZE_MAX)
        letters = await self._redriver.matching(asked, lambda letter: hold(conditions, _fields(letter.record)))
        yield pb.BulkResolveDeadLettersResponse(stage=pb.BulkResolveDeadLettersResponse.COUNTED, total=len(letters))
        if request.dry_run:
            return
        is_requeue = request.action == request.REQUEUE

        async def resolve(letter: DeadLetterView) -> None:
            if is_requeue:
                await self._requeue(letter.id, overrides, request.notes)
            else:
                await self._discard(letter.id, request.notes)

        async def outcome_of(letter: DeadLetterView) -> LaterOutcome | None:
            return await self._outcomes.after(asked.workspace, letter)

        async for state in self._redriver.run(letters, resolve, outcome_of if is_requeue else None):
            yield _progress(state, is_requeue=is_requeue)

    async def MarkDeadLetterFixed(
        self, request: pb.MarkDeadLetterFixedRequest, context: RpcCall
    ) -> pb.MarkDeadLetterFixedResponse:
        workspace, letter_id = caller().workspace, request.dead_letter_id
        whole = await to_dict(Struct(fields={"output": request.output}), "", OVERRIDES_BYTES_MAX)
        output = sorted_json(whole["output"])
        if len(output) > OVERRIDES_BYTES_MAX:
            raise refusals.invalid_field("output", "TOO_LARGE", f"has more than {OVERRIDES_BYTES_MAX} bytes")
        if is_execution_id(letter_id):
            await self._dead_letters.find(workspace, letter_id)
            raise refusals.execution_given_up(letter_id)
        message = translate.command()
        message.mark_fixed.run, message.mark_fixed.notes = _number(letter_id), request.notes
        message.mark_fixed.output = output
        command = _command("fix", letter_id, message)
        letter = await self._dead_letters.resolve(workspace, letter_id, "FIXED", command)
        return holding(pb.MarkDeadLetterFixedResponse, dead_letter=letter.record)

    async def QuarantineRun(self, request: pb.QuarantineRunRequest, context: RpcCall) -> pb.QuarantineRunResponse:
        if not _number(request.run_id):
            raise refusals.run_not_found(request.run_id)
        message = translate.command()
        message.quarantine.run, message.quarantine.notes = _number(request.run_id), request.notes
        # A run is set apart once, so every repeat is the same command, also after the end that it brought about.
        command = _command("quarantine", request.run_id, message, "once")._replace(has_content=False)
        letter = await self._dead_letters.quarantine(caller().workspace, request.run_id, command)
        return holding(pb.QuarantineRunResponse, dead_letter=letter.record)


async def _overrides(given: Struct) -> bytes:
    """A JSON object; empty: none."""
    return await to_json(given, "input_overrides", OVERRIDES_BYTES_MAX) if given.fields else b""


def _progress(state: Redrive, *, is_requeue: bool) -> pb.BulkResolveDeadLettersResponse:
    counts = {name: getattr(state, name) for name in ("total", "resolved", "succeeded", "failed_again", "cancelled")}
    response = pb.BulkResolveDeadLettersResponse(**counts, message=state.stopped)
    ended = state.succeeded + state.failed_again + state.cancelled if is_requeue else state.resolved
    is_done = state.resolved == state.total == ended
    if state.stopped:
        response.stage = response.STOPPED
    else:
        response.stage = response.DONE if is_done else response.UNDER_WAY
    return response


def _command(kind: str, run_id: str, message: Any, request_id: str = "") -> NewCommand:
    execution_id, _, number = run_id.partition(".")
    return NewCommand(f"{kind}.{number}", execution_id, message, request_id)


def _number(run_id: str) -> int:
    """0: it is no id of a run."""
    execution_id, _, number = run_id.partition(".")
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    return int(number) if is_number and is_execution_id(execution_id) else 0


def _place_text(letter: DeadLetterView) -> str:
    return f"{letter.quarantine_time}:{letter.id}"


def _place(text: str) -> tuple[int, str] | None:
    time_us, _, letter_id = text.partition(":")
    execution_id = letter_id.partition(".")[0]
    is_time = time_us.isascii() and time_us.isdigit() and len(time_us) < 18
    return (int(time_us), letter_id) if is_time and is_execution_id(execution_id) else None


def _fields(letter: pb.DeadLetter) -> Mapping[str, str | int | datetime]:
    """The fields by the names that filters use. An empty text is absent."""
    texts = {
        "execution_id": letter.execution_id,
        "workflow": letter.workflow,
        "node": letter.node,
        "module": letter.module,
        "reason": pb.DeadLetter.Reason.Name(letter.reason),
        "resolution": pb.DeadLetter.Resolution.Name(letter.resolution),
        "reviewer": letter.reviewer,
        "error.type": letter.error.type,
        "error.message": letter.error.message,
        "error.fingerprint": letter.error.fingerprint,
    }
    times = {"quarantine_time": letter.quarantine_time.ToDatetime(UTC)}
    return {name: text for name, text in texts.items() if text} | {"version": letter.version} | times
