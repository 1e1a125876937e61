"""The JSON Schema of each built-in module's config, in the form that `schema_faults.py` describes."""

from collections.abc import Mapping
from typing import Final

from windlass.definition.durations import SECOND
from windlass.definition.fields import (
    BRANCH,
    DURATION,
    FREE,
    TIMEOUT,
    WORKFLOW_NAME,
    Schema,
    duration_between,
    object_of,
    whole_from_one,
)
from windlass.definition.limits import (
    APPROVALS_REQUIRED_MAX,
    ASSIGNEE_CHARACTERS_MAX,
    ASSIGNEES_MAX,
    ITEMS_MAX,
    PARALLEL_MAX,
    SIGNAL_CHARACTERS_MAX,
    TITLE_CHARACTERS_MAX,
    TURNS_MAX,
    VERSION_MAX,
)

DELAY_SECONDS_MAX: Final = 3_600
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_DELAY: Final[Schema] = duration_between(
    0, DELAY_SECONDS_MAX * SECOND, "delay@1 keeps a place of its runner, so it takes an hour at most; use sleep@1"
)
_TIME: Final[Schema] = {"time": True, "x-reason": "BAD_TIME"}
_EXPRESSION: Final[Schema] = {"type": "string", "description": 'an expression is text: write "input.n > 5" in quotes'}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
# The fields of a node that say what is done. The other ones are those of the loop.
_BODY: Final[Schema] = {
    **object_of(module={}, config=FREE, inputs=FREE),
    "description": "a body is an object with a module, its config and its inputs",
}


def _text(most: int, words: str) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": most, "description": words}


_CHILD: Final[dict[str, Schema]] = {
    "workflow": WORKFLOW_NAME,
    "version": {
        "type": "integer",
        "minimum": 1,
        "maximum": VERSION_MAX,
        "description": "a version is a whole number from 1",
    },
    "onParentEnd": {"enum": ["CANCEL", "ABANDON"]},
}
_BODY_OR_CHILD: Final[Schema] = {
    **object_of((), module={}, config=FREE, inputs=FREE, **_CHILD),
    "description": "a body is an object with a module, its config and its inputs, or with a workflow and its inputs",
}
_EITHER: Final[Schema] = {
    "oneOf": [{"required": ["duration"]}, {"required": ["until"]}],
    "description": "sleep@1 needs either a duration or the time until when",
}

CONFIG_SCHEMAS: Final[Mapping[str, Schema]] = {
    "noop@1": object_of(),
    "transform@1": object_of(),
    "join@1": object_of(),
    "state.set@1": object_of(),
    "for_each@1": object_of(
        ("items", "body"),
        items={"type": "array", "maxItems": ITEMS_MAX, "description": f"items is a list of at most {ITEMS_MAX} items"},
        maxParallel=whole_from_one(PARALLEL_MAX),
        onItemFailure={"enum": ["FAIL", "CONTINUE"]},
        body=_BODY_OR_CHILD,
    ),
    "repeat@1": object_of(
        ("until", "body"), until=_EXPRESSION, maxIterations=whole_from_one(TURNS_MAX), delay=DURATION, body=_BODY
    ),
    "sleep@1": {**object_of(duration=DURATION, until=_TIME), "allOf": [_EITHER]},
    "sub_workflow@1": object_of(("workflow",), **_CHILD),
    "wait_signal@1": object_of(
        ("signal",),
        signal=_text(SIGNAL_CHARACTERS_MAX, f"a signal is named by a text of 1 to {SIGNAL_CHARACTERS_MAX} characters"),
        timeout=TIMEOUT,
        onTimeout={"enum": ["FAIL", "CONTINUE"]},
    ),
    "approval@1": object_of(
        ("title",),
        title=_text(TITLE_CHARACTERS_MAX, f"a title is a text of 1 to {TITLE_CHARACTERS_MAX} characters"),
        form={"type": "object"},
        assignees={
            "type": "array",
            "maxItems": ASSIGNEES_MAX,
            "items": _text(ASSIGNEE_CHARACTERS_MAX, 'an assignee is the title of a key, or a role like "role:ADMIN"'),
        },
        required={
            "type": "integer",
            "minimum": 1,
            "maximum": APPROVALS_REQUIRED_MAX,
            "description": f"must be a whole number from 1 to {APPROVALS_REQUIRED_MAX}",
        },
        timeout=TIMEOUT,
        onTimeout={"enum": ["APPROVE", "REJECT", "FAIL"]},
    ),
    "condition@1": object_of(("expression",), expression=_EXPRESSION),
    "switch@1": object_of(
        ("cases",),
        cases={"type": "array", "items": object_of(("when", "branch"), when=_EXPRESSION, branch=BRANCH)},
        default=BRANCH,
    ),
    "delay@1": object_of(("duration",), duration=_DELAY),
    "fail@1": object_of(
        type={"type": "string"}, message={"type": "string"}, untilAttempt={"type": "integer", "minimum": 1}
    ),
    "http.request@1": object_of(
        ("url",),
        method={"enum": [*_METHODS, *(method.lower() for method in _METHODS)]},
        url={
            "type": "string",
            "pattern": "^https?://",
            "x-reason": "BAD_URL",
            "description": "a url is text that begins with http:// or https://",
        },
        headers=_TEXTS,
        query=_TEXTS,
        body={},
        json={},
        timeout=DURATION,
    ),
}
# Control modules with a body, which is done once for each item or turn. These members of their config are not rendered
# with the loop, but with each item.
LOOP_MODULES: Final = frozenset({"for_each@1", "repeat@1"})
OF_BODY: Final = frozenset({"body", "until"})
# The module evaluates this member itself, as it stands: no template in it is ever rendered.
RAW_MEMBERS: Final[Mapping[str, str]] = {"condition@1": "expression", "switch@1": "cases"}
