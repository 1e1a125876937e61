"""The reasons and types that the services give, read from their syntax trees: what docs/errors.md must know.

A reason is the first argument of a `Refusal`; the type of a run's error is what stands in upper case in the making of
one. Either may be a name for a text, one of two texts, or a text with a hole: `HTTP_{status}` is read as `HTTP_<>`.

Hazard: a reason that comes from elsewhere (a message of another service, a module's own) is in no tree, and is not
looked for.
"""

import ast
import re
from collections.abc import Iterator

REFUSAL = "Refusal"
ERRORS = {
    "Error",
    "Failure",
    "ModuleError",
    "PermanentError",
    "TransientError",
    "ModuleTimeout",
    "CircuitOpenError",
    "_permanent",
}
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9<>]+)*")
Texts = dict[str, set[str]]


def refusal_reasons(text: str) -> set[str]:
    tree = ast.parse(text)
    known = _named_texts(tree)
    return {
        reason
        for call in _calls(tree, {REFUSAL})
        for reason in (_texts(call.args[0], known) if call.args else ())
        if UPPER_SNAKE.fullmatch(reason)
    }


def run_error_types(text: str) -> set[str]:
    """Also what a class of errors is called when nobody says more, and a type that is set afterwards."""
    tree = ast.parse(text)
    known = _named_texts(tree)
    values: list[ast.expr] = [
        value for call in _calls(tree, ERRORS) for value in (*call.args, *(each.value for each in call.keywords))
    ]
    values += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(_is_type(target) for target in node.targets)
    ]
    return {found for value in values for found in _texts(value, known) if UPPER_SNAKE.fullmatch(found)}


def named_in(page: str) -> set[str]:
    """Everything between backticks, holes emptied."""
    return {re.sub(r"<\w*>", "<>", name) for name in re.findall(r"`([^`\n]+)`", page)}


def _is_type(target: ast.expr) -> bool:
    """`class_name = …` of a class, `failed.type = …` of a message."""
    if isinstance(target, ast.Name):
        return target.id == "class_name"
    return isinstance(target, ast.Attribute) and target.attr == "type"


def _calls(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in names:
                yield node


def _named_texts(tree: ast.AST) -> Texts:
    """The texts that each name of the module may stand for in any function: too many are better than too few."""
    known: Texts = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                known.setdefault(target.id, set()).update(_texts(node.value, {}))
    return known


def _texts(value: ast.expr, known: Texts) -> set[str]:
    match value:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.JoinedStr(values=parts):
            return {"".join(str(each.value) if isinstance(each, ast.Constant) else "<>" for each in parts)}
        case ast.IfExp(body=one, orelse=other):
            return _texts(one, known) | _texts(other, known)
        case ast.Name(id=name):
            return known.get(name, set())
        case _:
            return set()
