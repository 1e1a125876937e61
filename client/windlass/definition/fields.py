"""The JSON Schemas of a definition's own fields, and the parts that the configs of modules share with them.

`schema_faults.py` checks them, and says which members and keywords they have beside those of JSON Schema.
"""

from typing import Any, Final

from windlass.definition.durations import DURATION_MAX, SECOND
from windlass.definition.limits import (
    ATTEMPT_SECONDS_MAX,
    ATTEMPTS_MAX,
    BRANCH_FORM,
    FACTOR_MAX,
    NAME_FORM,
    NODE_ID_FORM,
)

Schema = dict[str, Any]


def object_of(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _form(what: str, form: str, reason: str) -> Schema:
    reasons = {"x-reason": reason, "x-null-reason": "REQUIRED"}
    return {"type": "string", "pattern": f"^{form}$", **reasons, "description": f"{what} has the form {form}"}


def _from_one(kind: str, words: str, most: int) -> Schema:
    return {"type": kind, "minimum": 1, "maximum": most, "description": f"must be {words} from 1 to {most}"}


def whole_from_one(most: int) -> Schema:
    return _from_one("integer", "a whole number", most)


FREE: Final[Schema] = {"type": "object"}
WORKFLOW_NAME: Final[Schema] = _form("a name", NAME_FORM, "MALFORMED_NAME")
DURATION: Final[Schema] = {"duration": True, "x-reason": "BAD_DURATION"}


def duration_between(least: int, most: int, description: str) -> Schema:
    """In microseconds."""
    between = {"duration-between": [least, most], "x-reason": "OUT_OF_RANGE", "description": description}
    return {"allOf": [DURATION, between]}


TIMEOUT: Final[Schema] = duration_between(1, DURATION_MAX, "a timeout is longer than nothing")
BRANCH: Final[Schema] = {
    "type": "string",
    "x-null-reason": "REQUIRED",
    "description": 'a branch is text: write "true" in quotes',
    "allOf": [
        {
            "pattern": f"^{BRANCH_FORM}$",
            "x-reason": "MALFORMED_BRANCH",
            "description": f"a branch has the form {BRANCH_FORM}",
        }
    ],
}
_DESCRIPTION: Final[Schema] = {
    "type": "string",
    "maxLength": 4_096,
    "description": "must be text of at most 4096 characters",
}


_LABEL: Final[Schema] = {
    "x-reason": "WRONG_TYPE",
    "description": "a label is a name of at most 63 characters with a text of at most 255",
}
_LABELS: Final[Schema] = {
    "type": "object",
    "patternProperties": {"(?s)^.{1,63}$": {"type": "string", "maxLength": 255, **_LABEL}},
    "additionalProperties": False,
    **_LABEL,
}
_RETRY: Final[Schema] = object_of(
    attempts=whole_from_one(ATTEMPTS_MAX),
    initialDelay=DURATION,
    factor=_from_one("number", "a number", FACTOR_MAX),
    maxDelay=DURATION,
    budget=DURATION,
)

_NODE_TIMEOUT: Final[Schema] = duration_between(
    1, ATTEMPT_SECONDS_MAX * SECOND, "the timeout of a node is longer than nothing and at most 24 hours"
)
WORKFLOW: Final[Schema] = object_of(
    ("name",),
    name=WORKFLOW_NAME,
    description=_DESCRIPTION,
    inputSchema={},
    initialState=FREE,
    timeout=TIMEOUT,
    onFailure={"enum": ["CONTINUE", "FAIL_FAST", "HOLD"]},
    recordInputs={"type": "boolean"},
    retry=_RETRY,
    nodes={"type": "array"},
    edges={"type": "array"},
    output={},
)
NODE: Final[Schema] = object_of(
    ("id",),
    id=_form("an id", NODE_ID_FORM, "MALFORMED_ID"),
    module={},
    description=_DESCRIPTION,
    config=FREE,
    inputs=FREE,
    timeout=_NODE_TIMEOUT,
    retry=_RETRY,
    idempotent={"type": "boolean"},
    join={"enum": ["ALL", "ANY"]},
    runnerLabels=_LABELS,
    compensate=FREE,
)
COMPENSATION: Final[Schema] = object_of(
    module={},
    description=_DESCRIPTION,
    config=FREE,
    inputs=FREE,
    timeout=_NODE_TIMEOUT,
    retry=_RETRY,
    idempotent={"type": "boolean"},
    runnerLabels=_LABELS,
)
_END: Final[Schema] = {"type": "string", "description": "an edge names a node here"}
EDGE: Final[Schema] = object_of(("from", "to"), **{"from": _END, "to": _END, "when": BRANCH})
