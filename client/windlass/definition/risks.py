"""Finds what is allowed in a definition and goes wrong later: the warnings that depend on nothing else.

Each warning says how its author answers it. A definition that has the answer gets no warning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.definition.compensation import compensation_of
from windlass.definition.faults import Fault
from windlass.definition.template_texts import body_of

_HTTP_REQUEST: Final = "http.request@1"
# Methods of which a second request may do the work a second time. A method that is a template is not judged.
_NOT_IDEMPOTENT: Final = frozenset({"POST", "PATCH"})
_KEY_HEADER: Final = "idempotency-key"
_WAITS: Final = frozenset({"approval@1", "wait_signal@1"})
# As docs/definitions.md says of `retry`.
_ATTEMPTS: Final = 3


def risks_of(document: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """The warnings of one node, its loop and its compensation. Members of the wrong type are faults elsewhere."""
    body, compensation = body_of(node), compensation_of(node)
    yield from _repeated_request(node, (document, node), path)
    if body is not None:
        yield from _repeated_request(body, (document, node), f"{path}.config.body")
    if compensation is not None:
        yield from _repeated_request(compensation, (document, node, compensation), f"{path}.compensate")
    yield from _endless_wait(document, node, path)


def _repeated_request(part: Mapping[str, Any], around: Sequence[Mapping[str, Any]], path: str) -> Iterator[Fault]:
    """The last of `around` has the policy of the work, and says whether it is idempotent."""
    config = part.get("config")
    if around[-1].get("idempotent") is True or part.get("module") != _HTTP_REQUEST or not isinstance(config, dict):
        return
    method, headers = config.get("method"), config.get("headers")
    has_key = isinstance(headers, dict) and any(name.lower() == _KEY_HEADER for name in headers)
    if isinstance(method, str) and method.upper() in _NOT_IDEMPOTENT and not has_key and _attempts(around) != 1:
        message = (
            f"a {method.upper()} that fails is sent again, and does its work twice if the server does not heed the "
            "header Idempotency-Key; set that header yourself, or `retry: {attempts: 1}`, or `idempotent: true`"
        )
        yield Fault(f"{path}.config.method", "REPEATED_REQUEST", message)


def _attempts(around: Sequence[Mapping[str, Any]]) -> Any:
    """The attempts of the innermost policy that names them."""
    found: Any = _ATTEMPTS
    for policy in (part.get("retry") for part in around):
        if isinstance(policy, dict):
            found = policy.get("attempts", found)
    return found


def _endless_wait(document: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[Fault]:
    module, config = node.get("module"), node.get("config")
    if not isinstance(module, str) or module not in _WAITS or not isinstance(config, dict):
        return
    if "timeout" not in config and "timeout" not in document:
        message = f"{module} waits for ever if nobody answers; set its `timeout`, or that of the workflow"
        yield Fault(f"{path}.config", "ENDLESS_WAIT", message)
