"""Says in a sentence what a blocker is (core/explaining.py), and which command inspects or mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any, Final, NamedTuple

from services.coordinator.core.approvals import ROLE, Approval
from services.coordinator.core.explaining import Blocker, Cause
from services.coordinator.core.state import Execution, Run, Work
from services.coordinator.core.values import ApprovalChoice

_NAMES_MAX: Final = 5
# What stands in a form for a value of each type of JSON Schema, until the person writes another one.
_EXAMPLES: Final[Mapping[str, Any]] = {"integer": 0, "number": 0, "boolean": True, "array": [], "object": {}}


class BlockerText(NamedTuple):
    sentence: str
    # Empty: there is nothing to be done.
    command: str


def text_of(execution: Execution, blocker: Blocker, why_no_runner: Callable[[str, Work], str]) -> BlockerText:
    """`why_no_runner` takes a workspace and ready work."""
    work = blocker.work
    if work is None:
        return BlockerText(_pause(execution), f"windlass resume {execution.execution_id}")
    why_none = why_no_runner(execution.origin.workspace, work) if blocker.cause is Cause.WAITING_FOR_RUNNER else ""
    return BlockerText(_sentence(execution, blocker, _name(work), why_none), _command(execution, blocker, work))


def _sentence(execution: Execution, blocker: Blocker, name: str, why_none: str) -> str:
    run, wait = blocker.run, blocker.wait
    match blocker.cause:
        case Cause.RUNNING if run is not None:
            progress = f", {run.progress:.0%} done" if run.progress else ""
            return f"{name} is being done by the runner {run.runner}{progress}"
        case Cause.LEASE_IN_DOUBT if run is not None:
            return f"the runner {run.runner} has {name} and is silent; when its lease ends, another one gets it"
        case Cause.WAITING_FOR_RUNNER:
            return f"{name} is ready, and {why_none}"
        case Cause.BACKOFF:
            return f"{name} failed and is tried again{_error(run)}"
        case Cause.CIRCUIT_OPEN:
            return f"{name} waits, because the circuit of {blocker.target} is open"
        case Cause.WAITING_FOR_RESOLUTION:
            return f"{name} failed for good and waits for a person{_error(run)}"
        case Cause.WAITING_FOR_SIGNAL if wait is not None:
            return f"{name} waits for the signal {wait.name}"
        case Cause.WAITING_FOR_APPROVAL if run is not None:
            return f"{name} {_approval(execution.approvals[run.number])}"
        case Cause.WAITING_FOR_CHILD if wait is not None and wait.child is not None:
            child = wait.child
            state = "which is not queued yet" if child.execution_id in execution.unstarted else "to end"
            return f"{name} waits for the execution {child.execution_id} of {child.workflow}, {state}"
        case Cause.WAITING_FOR_COMPLETION if run is not None:
            return f"{name} {_outside_work(execution, run)}"
        case _:
            return f"{name} sleeps"


def _command(execution: Execution, blocker: Blocker, work: Work) -> str:
    id_, wait = execution.execution_id, blocker.wait
    run_id = "" if blocker.run is None else f"{id_}.{blocker.run.number}"
    match blocker.cause:
        case Cause.WAITING_FOR_RUNNER:
            return "windlass status"
        case Cause.CIRCUIT_OPEN:
            return f"windlass circuits get {quote(blocker.target)}"
        case Cause.WAITING_FOR_RESOLUTION:
            return f"windlass dead-letters get {run_id}"
        case Cause.WAITING_FOR_SIGNAL if wait is not None:
            return f"windlass signal {id_} {quote(wait.name)}"
        case Cause.WAITING_FOR_APPROVAL if blocker.run is not None:
            return f"windlass approvals decide {run_id} APPROVE{_form(execution.approvals[blocker.run.number])}"
        case Cause.WAITING_FOR_CHILD if wait is not None and wait.child is not None:
            return f"windlass explain {wait.child.execution_id}"
        case Cause.SLEEPING:
            return ""
        case _:
            return f"windlass runs {id_}"


def _name(work: Work) -> str:
    """The node. An item of a loop also has its iteration, and how far the loop has come."""
    loop = work.loop
    if loop is None:
        return work.node.id
    return f"{work.node.id}[{work.key.iteration}] ({loop.begun - len(loop.going)} of {loop.count} done)"


def _error(run: Run | None) -> str:
    return f": {run.error.type}: {run.error.message}" if run is not None and run.error is not None else ""


def _pause(execution: Execution) -> str:
    paused = execution.paused_by
    assert paused is not None
    return f"{paused.caller} has paused it{f': {paused.reason}' if paused.reason else ''}"


def _approval(approval: Approval) -> str:
    missing = approval.required - len(approval.decisions)
    count = "1 approval is" if missing == 1 else f"{missing} approvals are"
    given = [each.caller for each in approval.decisions if each.decision is ApprovalChoice.APPROVE]
    before = f", after that of {_listed(given)}" if given else ""
    return f'asks "{approval.title}": {count} missing{before}; {_deciders(approval.assignees)} may decide'


def _form(approval: Approval) -> str:
    """The option with a form that has the members that are asked for. Their values are only of the right type. A schema
    that was rendered from templates may be none, and then nothing is known of its members."""
    schema = json.loads(approval.form)
    if not schema:
        return ""
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, dict) else {}
    names = required if isinstance(required, list) and required else known
    asked = {name: _example(known.get(name)) for name in names if isinstance(name, str)}
    return f" --form {quote(json.dumps(asked, ensure_ascii=False))}"


def _example(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return "…"
    if "const" in schema:
        return schema["const"]
    if isinstance(chosen := schema.get("enum"), list) and chosen:
        return chosen[0]
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    return _EXAMPLES.get(kind, "…") if isinstance(kind, str) else "…"


def _deciders(assignees: Sequence[str]) -> str:
    if not assignees:
        return "everybody whose key may write"
    return _listed(
        [f"any key of role {each.removeprefix(ROLE)}" if each.startswith(ROLE) else each for each in assignees]
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _outside_work(execution: Execution, run: Run) -> str:
    progress = f", {run.progress:.0%} done" if run.progress else ""
    return (
        f"was handed to somebody else by the runner {run.runner}{progress}; whoever has the completion token of the run"
        f" {execution.execution_id}.{run.number} says how it ends (windlass run complete TOKEN)"
    )
