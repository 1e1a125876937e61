"""approval@1: go on when people have decided.

    config: {"title": "Pay 900 EUR?", "form": {…}, "assignees": ["ann", "role:ADMIN"], "required": 2,
             "timeout": "7d", "onTimeout": "REJECT"}

`required` different keys have to approve; one rejection is enough. The node takes the branch approved or rejected, and
its output is {"decision": "APPROVED", "form": {…}, "decisions": […]}. `form` in the output is that of the decision that
ended the approval. api checks it against the schema when somebody decides.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from services.coordinator.core.controls.control import Control, InvalidConfig, config_of, members_of, timeout_of
from services.coordinator.core.events import ApprovalDecided, ApprovalRequested, WaitEnded, WaitKind, WaitOutcome
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import ApprovalState
from windlass.definition.limits import (
    APPROVALS_REQUIRED_MAX,
    ASSIGNEE_CHARACTERS_MAX,
    ASSIGNEES_MAX,
    TITLE_CHARACTERS_MAX,
)

_BRANCHES = {ApprovalState.APPROVED: "approved", ApprovalState.REJECTED: "rejected"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ACTIONS: Mapping[str, ApprovalState | None] = {
    "FAIL": None,
    "APPROVE": ApprovalState.APPROVED,
    "REJECT": ApprovalState.REJECTED,
}


class _Asked(NamedTuple):
    title: str
    form: bytes
    assignees: tuple[str, ...]
    required: int


class RequestApproval(Control):
    module = "approval@1"

    def begin(self, turn: Turn, work: Work) -> None:
        config = members_of(config_of(work), self.module)
        asked, timeout = _asked(config), timeout_of(config, tuple(_ACTIONS))
        turn.wait(work, WaitKind.APPROVAL, turn.now + timeout if timeout else 0)
        turn.emit(ApprovalRequested(turn.now, work.key, turn.run_of(work), *asked))

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        approval, config = turn.execution.approvals[end.run], config_of(work)
        state: ApprovalState | None = approval.state
        if end.outcome is WaitOutcome.EXPIRED:
            state = _ACTIONS[config.get("onTimeout", "FAIL")]
        if state is None:
            turn.fail(work, "APPROVAL_TIMEOUT", f"nobody decided within {config['timeout']}: {approval.title}")
        else:
            turn.succeed(work, _output(state, approval.decisions), _BRANCHES[state])


def _asked(config: Mapping[str, Any]) -> _Asked:
    title, form = config.get("title"), config.get("form", {})
    assignees, required = config.get("assignees", []), config.get("required", 1)
    if not isinstance(title, str) or not 0 < len(title) <= TITLE_CHARACTERS_MAX:
        raise InvalidConfig(f"the title of an approval is a text of 1 to {TITLE_CHARACTERS_MAX} characters")
    if not isinstance(form, dict):
        raise InvalidConfig("the form of an approval is a JSON Schema, which is an object")
    if not isinstance(assignees, list) or len(assignees) > ASSIGNEES_MAX or not all(map(_is_assignee, assignees)):
        raise InvalidConfig(f"the assignees of an approval are at most {ASSIGNEES_MAX} texts")
    if not isinstance(required, int) or isinstance(required, bool) or not 1 <= required <= APPROVALS_REQUIRED_MAX:
        raise InvalidConfig(f"an approval requires 1 to {APPROVALS_REQUIRED_MAX} people")
    return _Asked(title, json.dumps(form, ensure_ascii=False).encode(), tuple(assignees), required)


def _is_assignee(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= ASSIGNEE_CHARACTERS_MAX


def _output(state: ApprovalState, decisions: Sequence[ApprovalDecided]) -> bytes:
    shown = [
        {
            "caller": each.caller,
            "decision": each.decision.value,
            "form": json.loads(each.form),
            "comment": each.comment,
            "time": (_EPOCH + timedelta(microseconds=each.time)).isoformat().replace("+00:00", "Z"),
        }
        for each in decisions
    ]
    form = shown[-1]["form"] if shown else None
    found = {"decision": state.value, "form": form, "decisions": shown}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
