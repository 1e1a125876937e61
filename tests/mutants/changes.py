"""The places of a mutant's change, and the kinds of change.

A place is a name in a folder (`live_run`, `PollLoop.run_once`, a constant of a module), found in the syntax tree of
whichever file defines it. A change is described by the meaning of the code (a column is not compared, a call always
answers True), so neither a reworded line nor a moved file breaks it.
"""

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
# It changes the definition in place, and yields once for each spot that it changed.
Change = Callable[[ast.AST], Iterator[None]]

_BINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


class NotFound(Exception):
    """The place is not there, is there twice, or has nothing that the change could change."""


def mutated(root: Path, folder: str, name: str, change: Change) -> tuple[Path, str]:
    """The file that defines the name, and its text with the change made."""
    found = [(path, place) for path in sorted((root / folder).rglob("*.py")) for place in _places(path, name)]
    if len(found) != 1:
        raise NotFound(f"{name} is defined {len(found)} times in {folder}: {[str(path) for path, _ in found]}")
    path, place = found[0]
    if not list(change(place)):
        raise NotFound(f"nothing to change in {name} of {path}")
    lines = path.read_text().splitlines()
    indent = " " * place.col_offset
    first = min([place.lineno, *(each.lineno for each in getattr(place, "decorator_list", []))])
    lines[first - 1 : place.end_lineno] = _source(place, indent).splitlines()
    return path, "\n".join(lines) + "\n"


def _places(path: Path, name: str) -> list[Definition]:
    places: list[ast.Module | Definition] = [ast.parse(path.read_text())]
    for part in name.split("."):
        places = [
            each
            for place in places
            for each in getattr(place, "body", [])
            if isinstance(each, _BINDS) and part in _names(each)
        ]
    return [each for each in places if not isinstance(each, ast.Module)]


def _names(definition: Definition) -> list[str]:
    match definition:
        case ast.Assign(targets=targets):
            return [ast.unparse(target) for target in targets]
        case ast.AnnAssign(target=target):
            return [ast.unparse(target)]
        case _:
            return [definition.name]


def _source(place: Definition, indent: str) -> str:
    text = ast.unparse(ast.fix_missing_locations(place))
    # The text of an assignment is a long string, whose lines are not to be moved.
    return text if isinstance(place, ast.Assign | ast.AnnAssign) else textwrap.indent(text, indent)


def _mentions(node: ast.AST, name: str) -> bool:
    return any(
        (isinstance(each, ast.Name) and each.id == name)
        or (isinstance(each, ast.Attribute) and each.attr == name)
        or (isinstance(each, ast.keyword) and each.arg == name)
        for each in ast.walk(node)
    )


class _Replacer(ast.NodeTransformer):
    """Puts a new expression where `instead` gives one, and counts."""

    def __init__(self, instead: Callable[[ast.expr], ast.expr | None]) -> None:
        self.instead = instead
        self.count = 0

    def visit(self, node: ast.AST) -> ast.AST:
        new = self.instead(node) if isinstance(node, ast.expr) else None
        if new is None:
            return self.generic_visit(node)
        self.count += 1
        return new


def _replace(instead: Callable[[ast.expr], ast.expr | None]) -> Change:
    def change(place: ast.AST) -> Iterator[None]:
        replacer = _Replacer(instead)
        replacer.visit(place)
        yield from [None] * replacer.count

    return change


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def not_compared(name: str) -> Change:
    """Every comparison for equality or membership that mentions the name has the outcome of a match."""

    def instead(node: ast.expr) -> ast.expr | None:
        if not (isinstance(node, ast.Compare) and _mentions(node, name)):
            return None
        return ast.Constant(isinstance(node.ops[0], ast.Eq | ast.In | ast.Is))

    return _replace(instead)


def only_known(name: str) -> Change:
    """`found == name` becomes `found is not None`, so any value is enough."""

    def instead(node: ast.expr) -> ast.expr | None:
        match node:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Name(id=other)]) if other == name:
                return ast.Compare(left, [ast.IsNot()], [ast.Constant(None)])
            case _:
                return None

    return _replace(instead)


def taken_as(what: str, value: str) -> Change:
    """A name or an attribute (`grant.is_idempotent`) stands for another expression where it is read."""

    def instead(node: ast.expr) -> ast.expr | None:
        is_read = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        return _expression(value) if is_read and ast.unparse(node) == what else None

    return _replace(instead)


def answered(function: str, value: str, where: str = "") -> Change:
    """Calls of the function, on any object, stand for another expression; `where` limits them to those that mention a
    name. `{receiver}` and `{arguments}` in the expression are those of the call.
    """

    def instead(node: ast.expr) -> ast.expr | None:
        if not isinstance(node, ast.Call):
            return None
        receiver, _, called = ast.unparse(node.func).rpartition(".")
        if called != function or (where and not _mentions(node, where)):
            return None
        arguments = ", ".join(map(ast.unparse, [*node.args, *node.keywords]))
        return _expression(value.format(receiver=receiver, arguments=arguments))

    return _replace(instead)


def without_element(name: str) -> Change:
    """Lists do not contain the element that mentions the name."""

    def change(place: ast.AST) -> Iterator[None]:
        for node in ast.walk(place):
            if isinstance(node, ast.List):
                kept = [each for each in node.elts if not _mentions(each, name)]
                yield from [None] * (len(node.elts) - len(kept))
                node.elts = kept

    return change


def never_refused(reason: str) -> Change:
    """No `if` whose body gives this reason is entered."""

    def change(place: ast.AST) -> Iterator[None]:
        for node in ast.walk(place):
            if isinstance(node, ast.If) and any(_mentions(each, reason) for each in node.body):
                node.test = ast.Constant(False)
                yield

    return change


def also(statement: str) -> Change:
    """The function does one more thing at its end."""

    def change(place: ast.AST) -> Iterator[None]:
        if isinstance(place, ast.FunctionDef | ast.AsyncFunctionDef):
            place.body += ast.parse(statement).body
            yield

    return change


def sql_replaced(pattern: str, instead: str) -> Change:
    """A pattern in the statement stands for other SQL; a space in it is any white space."""
    compiled = re.compile(pattern.replace(" ", r"\s+"))

    def change(place: ast.AST) -> Iterator[None]:
        for node in ast.walk(place):
            if not isinstance(node, ast.Constant):
                continue
            if isinstance(node.value, str):
                node.value, count = compiled.subn(instead, node.value)
                yield from [None] * count
            elif isinstance(node.value, bytes):
                text, count = compiled.subn(instead, node.value.decode())
                node.value = text.encode()
                yield from [None] * count

    return change


def sql_not_compared(column: str) -> Change:
    """`column = anything` is true; without a table's name before it, that of every table."""
    table = "" if "." in column else r"(?:\w+\.)?"
    return sql_replaced(rf"\b{table}{re.escape(column)} = (?:'[^']*'|[\w.$]+)", "true")
