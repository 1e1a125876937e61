"""The laws of the house that a linter cannot state, each as a function from a source to its breaches.

A rule sees one parsed file (`Source`) and yields lines "path:line: what is wrong"; tests/test_tidy.py runs every
rule over every file, and proves on small bad samples that each rule can fail.

Rules work on the syntax tree, so a ban holds for code and not for the prose that explains it.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600

# These names say nothing about the content, so such a file collects anything.
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
VAGUE_NAMES |= {"manager", "managers", "stuff", "shared"}
# These suffixes mark a second file instead of a changed first one.
SECOND_FILE = re.compile(r"(?:_(?:v?\d+|new|old|final|copy|bak|backup|tmp|temp|fixed|improved|orig))$")
# These words speak of the making of the tree and not of the product.
FOREIGN_WORDS = re.compile(
    r"\b(?:as (?:requested|instructed)|(?:auto|machine|ai)-generated code|sub-?agents?|prompts? said"
    r"|the (?:user|reviewer|brief|ticket|issue) (?:asked|asks|wants|wanted|says|said|demands))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Source:
    """One Python file: its path inside the tree and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. A file that does not parse fails the test that reads it."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, walked once for all rules."""
        return list(ast.walk(self.tree))

    @property
    def is_test(self) -> bool:
        """True below tests/."""
        return self.path.startswith("tests/")

    def at(self, place: ast.AST | int, what: str) -> str:
        """One breach, in the form that an editor can jump to."""
        line = place if isinstance(place, int) else getattr(place, "lineno", 1)
        return f"{self.path}:{line}: {what}"


Rule = Callable[[Source], Iterator[str]]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Adds a rule to those that run over the tree."""
    RULES.append(function)
    return function


def called(node: ast.AST) -> str:
    """The dotted name that a call calls, or nothing."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def has_keyword(node: ast.Call, name: str) -> bool:
    """True when the call gives this keyword a value."""
    return any(keyword.arg == name and ast.unparse(keyword.value) not in {"''", "None"} for keyword in node.keywords)


def types_of(source: Source) -> set[str]:
    """The public classes and type aliases of a module. A type variable means something in its own file only."""
    found = {node.name for node in source.tree.body if isinstance(node, ast.ClassDef)}
    for node in source.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and called(node.value) != "TypeVar":
            found.add(ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target))
    return {name for name in found if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)}


@rule
def module_size(source: Source) -> Iterator[str]:
    """A file that is too large to keep in mind is two files."""
    lines = source.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield source.at(1, f"module of {lines} lines; {MODULE_LINES_MAX} at most")


@rule
def function_size(source: Source) -> Iterator[str]:
    """A function that does not fit on a screen is several."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.at(node, f"{node.name} has {lines} lines; {FUNCTION_LINES_MAX} at most")


@rule
def names_say_what_is_inside(source: Source) -> Iterator[str]:
    """Folders and files are named for what they hold."""
    for part in Path(source.path).with_suffix("").parts:
        words = part.removeprefix("test_")
        if words in VAGUE_NAMES or set(words.split("_")) & {"utils", "util", "helpers", "misc", "manager"}:
            yield source.at(1, f"the name {part!r} says nothing about what is inside")
        if SECOND_FILE.search(words):
            yield source.at(1, f"{part!r} looks like a second file with a suffix; change the first")


@rule
def nothing_unfinished(source: Source) -> Iterator[str]:
    """Open work is an issue and not a gap in the code."""
    for node in source.nodes:
        raised = ast.unparse(node.exc) if isinstance(node, ast.Raise) and node.exc else ""
        if raised.startswith("NotImplemented"):
            yield source.at(node, f"{raised}: write it, or declare a Protocol")


@rule
def tests_do_not_sleep(source: Source) -> Iterator[str]:
    """A test awaits a probe or moves the clock; asyncio.sleep(0) only yields.

    Only two files may let time pass, by `until` and `pause`. In a module that runners load, sleeping is the work.
    """
    may_sleep = source.path in {"tests/support/probe.py", "tests/support/pace.py"}
    if not source.is_test or may_sleep or source.path.endswith("_modules.py"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and called(node) in {"time.sleep", "asyncio.sleep", "sleep"}:
            only_yields = [ast.unparse(argument) for argument in node.args] == ["0"]
            if not only_yields:
                yield source.at(node, "a test that sleeps; await a probe or move the clock")


@rule
def skips_have_reasons(source: Source) -> Iterator[str]:
    """A test that does not run says why."""
    if not source.is_test:
        return
    for node in source.nodes:
        name = called(node)
        if re.fullmatch(r"pytest\.(?:skip|xfail|mark\.skip|mark\.skipif|mark\.xfail)", name):
            assert isinstance(node, ast.Call)
            positional = bool(node.args) and not name.startswith("pytest.mark")
            if not positional and not has_keyword(node, "reason"):
                yield source.at(node, f"{name} without a reason")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if ast.unparse(decorator) in {"pytest.mark.skip", "pytest.mark.xfail"}:
                    yield source.at(decorator, "skip without a reason")


@rule
def cores_read_no_clock(source: Source) -> Iterator[str]:
    """`datetime` is a value in a core, and the present time arrives in the call. (.importlinter bans the rest.)"""
    if re.match(r"services/(?:\w+/core|chassis/lease)/", source.path):
        for node in source.nodes:
            if re.search(r"(?:^|\.)(?:now|utcnow|today)$", called(node)) and "datetime" in called(node):
                yield source.at(node, "a core read the clock")


@rule
def status_codes_have_one_home(source: Source) -> Iterator[str]:
    """Status codes are chosen in chassis/grpc/errors.py. A servicer that aborts by itself would choose one too."""
    if re.match(r"services/(?:api|dispatcher|coordinator|runner)/(?:rpc|peers|core|app|handler)", source.path):
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and node.attr == "StatusCode":
                yield source.at(node, "a status code outside chassis/grpc/errors.py")
            if called(node).endswith("context.abort"):
                yield source.at(node, "context.abort in a servicer; raise what chassis/grpc/errors.py translates")


@rule
def speaks_of_the_product_only(source: Source) -> Iterator[str]:
    """The tree does not tell how it was made."""
    yield from foreign_words(source.path, source.text)


def foreign_words(path: str, text: str) -> Iterator[str]:
    """The breaches of the rule above in a file of any kind."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := FOREIGN_WORDS.search(line):
            yield f"{path}:{number}: {found.group(0)!r} is no word of the product"
