"""The reasons and types that the services give, read from their syntax trees: docs/errors.md has to know them.

A reason is a text in upper case in the call of `Refusal`; the type of a run's error is one in the making of an error,
or in the call of a function of the same module that returns one. Either may stand behind a name of the module, or have
a hole: `HTTP_{status}` is read as `HTTP_<>`.

Hazard: a reason from elsewhere (from a message of another service, or from a module) is in no tree, so it is not found.
"""

import ast
import re
from collections.abc import Iterator

ERRORS = {
    "Error",
    "Failure",
    "FinalError",
    "ModuleError",
    "PermanentError",
    "TransientError",
    "ModuleTimeout",
    "CircuitOpenError",
}
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9<>]+)*")


def refusal_reasons(text: str) -> set[str]:
    return _given(text, {"Refusal"}, set())


def run_error_types(text: str) -> set[str]:
    """Includes the `class_name` of each class of errors, and every `type` that a message gets later."""
    return _given(text, ERRORS, {"class_name", "type"})


def stream_faults(text: str) -> set[str]:
    """The reasons for which a server ends a session. Some are the first of a returned pair: reason and message."""
    returned = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Return)]
    firsts = [value.elts[0] for value in returned if isinstance(value, ast.Tuple) and value.elts]
    found = {text for first in firsts for text in _texts(first) if UPPER_SNAKE.fullmatch(text)}
    return found | _given(text, {"StreamFault", "AttachRefused", "close"}, set())


def named_in(page: str) -> set[str]:
    """Everything between backticks, with emptied holes."""
    return {re.sub(r"<\w*>", "<>", name) for name in re.findall(r"`([^`\n]+)`", page)}


def _given(text: str, makers: set[str], names: set[str]) -> set[str]:
    """The texts in calls of the makers, and those that are assigned to one of these names or to a name in such a call.
    Too many are better than too few."""
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    makers = makers | {made.name for made in functions if made.returns is not None and _name(made.returns) in makers}
    calls = [node for node in nodes if isinstance(node, ast.Call) and _name(node.func) in makers]
    spots: list[ast.AST] = [value for call in calls for value in (*call.args, *call.keywords)]
    wanted = names | {_name(node) for spot in spots for node in ast.walk(spot) if isinstance(node, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            spots += [node.value for target in targets if _name(target) in wanted]
    return {found for spot in spots for found in _texts(spot) if UPPER_SNAKE.fullmatch(found)}


def _name(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "id", ""))


def _texts(spot: ast.AST) -> Iterator[str]:
    for node in ast.walk(spot):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "<>" for each in node.values)
