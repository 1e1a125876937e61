"""Reads YAML: only the types that JSON has, with the line of everything, and no duplicate keys.

Scalars follow YAML 1.1 as PyYAML knows it (`yes` is true, `<<` merges), except that a date stays text.

Hazard: each alias is read again and counts with the size of its target, so that a few lines cannot become gigabytes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from yaml import CSafeLoader, MappingNode, MarkedYAMLError, Node, ScalarNode, SequenceNode, YAMLError
from yaml.composer import Composer

from windlass.definition.faults import Fault, Faults, shown_key
from windlass.definition.json_values import number
from windlass.definition.limits import DEFINITION_BYTES_MAX, DEPTH_MAX, FAULTS_MAX

# The limit of values in the text. Each takes some 500 bytes while it is read.
NODES_MAX: Final = 250_000
# Nesting over DEPTH_MAX is one fault among others. At this depth reading ends: libyaml's time grows with its square.
LEVELS_MAX: Final = 2 * DEPTH_MAX
# A double has far fewer. The time to read a number grows with the square of its digits.
DIGITS_MAX: Final = 400
_TAG: Final = "tag:yaml.org,2002:"
_TEXTS: Final = frozenset({"str", "timestamp", "value", "merge"})
_STEP: Final = re.compile(r"(?<=.)[.\[]|$")


class Unreadable(Exception):
    """The text holds no JSON value."""

    def __init__(self, reason: str, message: str, path: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.fault = Fault(path, reason, message, line=line)


class _Loader(Composer, CSafeLoader):
    """libyaml parses and Python composes, so that reading can stop at a limit."""

    def __init__(self, text: str) -> None:
        CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._nodes = self._levels = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._nodes += 1
        self._levels += 1
        event: Any = self.peek_event()
        line = event.start_mark.line + 1
        if self._nodes > NODES_MAX:
            raise Unreadable("TOO_LARGE", f"at most {NODES_MAX} values in YAML", line=line)
        if self._levels > LEVELS_MAX:
            raise Unreadable("TOO_DEEP", f"is nested deeper than {DEPTH_MAX}", line=line)
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node


class YamlText:
    def __init__(self, text: str) -> None:
        """Raises Unreadable."""
        self.faults = Faults()
        self.document: Any = None
        # The path to the value that is being read.
        self._path: list[str] = []
        self._open: set[Node] = set()
        self._spent = 0
        self._members: dict[int, Mapping[str, tuple[int, Node]]] = {}
        try:
            self._loader = _Loader(text)
            self._root = self._loader.get_single_node()
        except MarkedYAMLError as error:
            told = ", ".join(part for part in (error.context, error.problem) if part)
            line = 0 if error.problem_mark is None else error.problem_mark.line + 1
            raise Unreadable("SYNTAX", f"this is not YAML: {told}", line=line) from None
        except YAMLError as error:
            raise Unreadable("SYNTAX", f"this is not YAML: {' '.join(str(error).split())[:300]}") from None
        if self._root is not None:
            self.document = self._read(self._root)

    def line_of(self, path: str) -> int:
        """The line of the value at this path, or of the last part of the path that exists."""
        line, node = (0, None) if self._root is None else (_line(self._root), self._root)
        rest = path if path.startswith("[") else f".{path}"
        while node is not None and rest:
            members = self._members.get(id(node))
            if members is None:
                members = self._members[id(node)] = dict(_members(node))
            # A key may hold dots and brackets itself.
            ends = (found.start() for found in _STEP.finditer(rest))
            end = next((end for end in ends if rest[:end] in members), None)
            if end is None:
                break
            (line, node), rest = members[rest[:end]], rest[end:]
        return line

    def _read(self, node: Node) -> Any:
        # A container counts its two brackets, a scalar its text and a comma.
        self._spent += 1 + len(node.value) if isinstance(node, ScalarNode) else 2
        if self._spent > DEFINITION_BYTES_MAX:
            raise Unreadable("TOO_LARGE", f"at most {DEFINITION_BYTES_MAX} bytes with all aliases written out")
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if node in self._open:
            raise Unreadable("SYNTAX", "an alias stands inside its own target", self._shown_path(), _line(node))
        if len(self._open) >= LEVELS_MAX:
            raise Unreadable("TOO_DEEP", f"is nested deeper than {DEPTH_MAX}", self._shown_path(), _line(node))
        self._open.add(node)
        value = self._list(node) if isinstance(node, SequenceNode) else self._object(node)
        self._open.remove(node)
        return value

    def _list(self, node: Node) -> list[Any]:
        return [self._inside(f"[{index}]", inner) for index, inner in enumerate(node.value)]

    def _inside(self, step: str, node: Node) -> Any:
        self._path.append(step)
        value = self._read(node)
        self._path.pop()
        return value

    def _object(self, node: Node) -> dict[str, Any]:
        members: dict[str, Any] = {}
        merged: list[Any] = []
        for key, value in node.value:
            tag = key.tag.removeprefix(_TAG)
            if not isinstance(key, ScalarNode):
                raise Unreadable("NOT_JSON", "a key must be text", self._shown_path(), _line(key))
            if tag == "merge":
                merged += self._merged(value)
                continue
            shown = shown_key(key.value)
            if tag not in _TEXTS:
                self._tell("NOT_JSON", f'a key must be text: write "{shown}" in quotes', key, f".{shown}")
            elif key.value in members:
                self._tell("DUPLICATE_KEY", f"the key {shown!r} occurs twice in one object", key, f".{shown}")
            members[key.value] = self._inside(f".{shown}", value)
        for source in merged:  # if two sources have the same key, the earlier one wins
            for name, value in source.items():
                members.setdefault(name, value)
        return members

    def _merged(self, node: Node) -> list[dict[str, Any]]:
        value = self._inside(".<<", node)
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise Unreadable("NOT_JSON", "<< takes an object, or a list of objects", self._shown_path(), _line(node))
        return sources

    def _scalar(self, node: ScalarNode) -> Any:
        tag, text = node.tag.removeprefix(_TAG), node.value
        try:
            if tag in _TEXTS:
                return text
            if tag == "null":
                return None
            if tag == "bool":
                return self._loader.construct_yaml_bool(node)
            if tag == "int" and len(text) <= DIGITS_MAX:
                return number(self._loader.construct_yaml_int(node))
            if tag == "float" and len(text) <= DIGITS_MAX:
                return number(self._loader.construct_yaml_float(node))
        except (ValueError, KeyError):
            pass
        self._tell("NOT_JSON", f"{text[:40]!r} is not a {tag} that JSON has", node)
        return None

    def _tell(self, reason: str, message: str, node: Node, step: str = "") -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(self._shown_path(step), reason, message, line=_line(node)))

    def _shown_path(self, step: str = "") -> str:
        return "".join([*self._path, step]).removeprefix(".")[:200]


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _members(node: Node) -> Iterator[tuple[str, tuple[int, Node]]]:
    """The line and the value of each part, by its step in a path. Merged members are included."""
    if isinstance(node, SequenceNode):
        for index, inner in enumerate(node.value):
            yield f"[{index}]", (_line(inner), inner)
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for source in value.value if isinstance(value, SequenceNode) else [value]:
                    yield from _members(source)
        for key, value in node.value:
            yield f".{shown_key(key.value)}", (_line(key), value)
