"""Finds every fault of a workflow's definition, each with its path.

It works in layers. Values that are no JSON are named and taken out. A definition that is no object or too large ends
the examination. Then come single fields, then nodes and edges as a graph, then templates against that graph. A later
layer only uses what an earlier one found sound, so that one mistake does not show as ten faults.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.definition import json_values, modules, templates
from windlass.definition.durations import parse_duration
from windlass.definition.faults import Fault, Faults
from windlass.definition.graph import ancestors, cycles
from windlass.definition.input_schemas import schema_fault
from windlass.definition.limits import DEFINITION_BYTES_MAX, EDGES_MAX, FAULTS_MAX, NODES_MAX
from windlass.definition.parsing import Format, LineOf, Parsed, parse
from windlass.definition.schema_faults import schema_faults

# The references of the workflow's `output` have this key; no node can have this id.
OUTPUT: Final = "$output"
# Members of a workflow or a node that its schema does not look into.
_INSIDE: Final = frozenset({"nodes", "edges", "inputSchema", "initialState", "output", "config", "inputs"})
_OUTCOMES: Final = frozenset({"success", "failure", "always"})
# Fields that hold an expression without the braces of a template.
_EXPRESSIONS: Final = {
    "condition@1": re.compile(r"\.config\.expression"),
    "switch@1": re.compile(r"\.config\.cases\[\d+\]\.when"),
}

# Says why a value is no usable JSON Schema; None when it is one.
SchemaFault = Callable[[Any], str | None]
# A message names so many branches; of more it gives the count.
BRANCHES_TOLD_MAX: Final = 20
# A path that leads into a node or an edge.
_IN_NODE: Final = re.compile(r"(nodes|edges)\[(\d+)\]")


@dataclass
class Verdict:
    """Without faults the definition can be applied; `canonical` is then what is stored."""

    faults: list[Fault] = field(default_factory=Faults)
    # For each node, and for OUTPUT, the nodes that its templates read; None: all nodes before it. A node whose
    # templates read no node is left out.
    references: dict[str, list[str] | None] = field(default_factory=dict)
    # Modules that are not built in, each with its warning for the case that no runner announces it.
    own_modules: list[tuple[str, Fault]] = field(default_factory=list)
    name: str = ""
    canonical: bytes = b""


@dataclass
class _Graph:
    """The nodes that have an id of their own, and the edges between them."""

    nodes: list[Mapping[str, Any]] = field(default_factory=list)
    # For each of `nodes` its place in the definition's list.
    places: list[int] = field(default_factory=list)
    by_id: dict[str, int] = field(default_factory=dict)
    edges: list[tuple[int, int]] = field(default_factory=list)
    # The branches of each node that has outgoing edges; see modules.branches_of.
    branches: dict[int, frozenset[str] | None] = field(default_factory=dict)


def examine_text(text: str, format_: Format) -> Verdict:
    """Examine a definition as its author wrote it."""
    return examine_parsed(parse(text, format_))


def examine_parsed(parsed: Parsed, schemas: SchemaFault = schema_fault) -> Verdict:
    """The same for a parsed text, with another judge of its inputSchema."""
    if parsed.document is None and parsed.faults:
        return Verdict(parsed.faults)
    verdict = examine(parsed.document, schemas, parsed.line_of, parsed.faults)
    verdict.faults.sort(key=lambda fault: fault.line)
    return verdict


def examine(
    document: Any, schemas: SchemaFault = schema_fault, line_of: LineOf | None = None, known: Sequence[Fault] = ()
) -> Verdict:
    """Examine a parsed definition; `known` are the faults of its text."""
    sifted = json_values.sift(document)
    verdict = Verdict()
    verdict.faults.extend(_unreadable(sifted.value, verdict))
    if not verdict.faults:
        _examine_parts(sifted.value, schemas, verdict)
    # A value that was taken out is no second fault at its place, and no fault of the schema around it.
    rest = [fault for fault in verdict.faults if not _is_of_gap(fault, sifted.gaps)]
    faults = [*known, *sifted.faults, *rest][:FAULTS_MAX]
    verdict.faults = [_placed(fault, sifted.value, line_of) for fault in faults]
    verdict.own_modules = [(own, _placed(each, sifted.value, line_of)) for own, each in verdict.own_modules]
    return verdict


def _placed(fault: Fault, document: Any, line_of: LineOf | None) -> Fault:
    """The fault with its line and its node: the one that its path leads into, or whose edge it is."""
    line = fault.line or (0 if line_of is None else line_of(fault.path))
    inside = _IN_NODE.match(fault.path)
    if inside is None or not isinstance(document, dict):
        return fault._replace(line=line)
    # A key of the document may look like such a path.
    items, place = document.get(inside[1]), int(inside[2])
    item = items[place] if isinstance(items, list) and place < len(items) else None
    node = item.get("id" if inside[1] == "nodes" else "from") if isinstance(item, dict) else None
    return fault._replace(line=line, node=node[:63] if isinstance(node, str) else "")


def too_large(how: str = "") -> Fault:
    return Fault("", "TOO_LARGE", f"{how}at most {DEFINITION_BYTES_MAX} bytes")


def warnings_of(verdict: Verdict, announced: Collection[str]) -> list[Fault]:
    """Modules that are neither built in nor announced by a runner. They are accepted, but their work waits."""
    return [warning for module, warning in verdict.own_modules if module not in announced]


def _is_of_gap(fault: Fault, gaps: Collection[str]) -> bool:
    if fault.reason == "BAD_SCHEMA":
        return any(gap.startswith(fault.path) for gap in gaps)
    return fault.path in gaps


def _examine_parts(document: Mapping[str, Any], schemas: SchemaFault, verdict: Verdict) -> None:
    _examine_fields(document, schemas, verdict)
    graph = _graph(document, verdict)
    _examine_circles(graph, verdict)
    _examine_templates(document, graph, verdict)
    verdict.name = document.get("name", "") if isinstance(document.get("name"), str) else ""


def _unreadable(document: Any, verdict: Verdict) -> Iterator[Fault]:
    if not isinstance(document, dict):
        yield Fault("", "WRONG_TYPE", "a definition is an object")
        return
    verdict.canonical = json_values.canonical(document)
    if len(verdict.canonical) > DEFINITION_BYTES_MAX:
        yield too_large(f"{len(verdict.canonical)} bytes; ")
    for key, most in (("nodes", NODES_MAX), ("edges", EDGES_MAX)):
        if isinstance(document.get(key), list) and len(document[key]) > most:
            yield Fault(key, f"TOO_MANY_{key.upper()}", f"{len(document[key])} {key}; at most {most}")


def _examine_fields(document: Mapping[str, Any], schemas: SchemaFault, verdict: Verdict) -> None:
    verdict.faults.extend(schema_faults("workflow", _outline(document), ""))
    verdict.faults.extend(_delay_faults(document, {}, ""))
    if "inputSchema" in document and (message := schemas(document["inputSchema"])) is not None:
        verdict.faults.append(Fault("inputSchema", "BAD_SCHEMA", message))


def _outline(part: Any) -> Any:
    """The part with its lists and its free JSON emptied: they are looked at elsewhere, and may be large."""
    if not isinstance(part, dict):
        return part
    return {
        key: type(value)() if key in _INSIDE and isinstance(value, dict | list) else value
        for key, value in part.items()
    }


def _graph(document: Mapping[str, Any], verdict: Verdict) -> _Graph:
    graph = _Graph()
    for place, node in enumerate(_listed(document, "nodes")):
        path = f"nodes[{place}]"
        verdict.faults.extend(schema_faults("node", _outline(node), path))
        if isinstance(node, dict):
            verdict.faults.extend(_node_faults(node, path, document))
            _note_own(node, path, verdict)
            _place(node, place, graph, verdict)
    for place, edge in enumerate(_listed(document, "edges")):
        path = f"edges[{place}]"
        verdict.faults.extend(schema_faults("edge", edge, path))
        if isinstance(edge, dict):
            _link(edge, path, graph, verdict)
    _tell_twice(_listed(document, "edges"), verdict)
    return graph


def _listed(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _node_faults(node: Mapping[str, Any], path: str, document: Mapping[str, Any]) -> Iterator[Fault]:
    module, config = node.get("module"), node.get("config", {})
    yield from modules.module_faults(module, f"{path}.module")
    if isinstance(module, str) and isinstance(config, dict):
        yield from schema_faults(module, config, f"{path}.config")
    if "retry" in node:
        yield from _delay_faults(node, document, f"{path}.")


def _delay_faults(part: Mapping[str, Any], workflow: Mapping[str, Any], prefix: str) -> Iterator[Fault]:
    """Members that a retry policy lacks are those of the workflow's policy, then those of docs/definitions.md."""
    policies = [each.get("retry") for each in (workflow, part)]
    whole = {"initialDelay": "1s", "maxDelay": "300s"}
    for policy in policies:
        whole |= policy if isinstance(policy, dict) else {}
    try:
        is_shorter = parse_duration(whole["maxDelay"]) < parse_duration(whole["initialDelay"])
    except ValueError:
        return  # this is another fault
    if is_shorter:
        yield Fault(f"{prefix}retry.maxDelay", "OUT_OF_RANGE", "must not be shorter than initialDelay")


def _note_own(node: Mapping[str, Any], path: str, verdict: Verdict) -> None:
    module = node.get("module")
    if isinstance(module, str) and "@" in module and modules.is_own(module):
        message = f"{module} is not built in: its work waits until a runner announces it"
        verdict.own_modules.append((module, Fault(f"{path}.module", "MODULE_NOT_BUILT_IN", message)))


def _place(node: Mapping[str, Any], place: int, graph: _Graph, verdict: Verdict) -> None:
    identity = node.get("id")
    if not isinstance(identity, str):
        return
    if identity in graph.by_id:
        first = graph.places[graph.by_id[identity]]
        verdict.faults.append(Fault(f"nodes[{place}].id", "DUPLICATE_ID", f"{identity!r} is also nodes[{first}]"))
        return
    graph.by_id[identity] = len(graph.nodes)
    graph.nodes.append(node)
    graph.places.append(place)


def _link(edge: Mapping[str, Any], path: str, graph: _Graph, verdict: Verdict) -> None:
    tell = verdict.faults.append
    ends: list[int] = []
    for key in ("from", "to"):
        node = edge.get(key)
        if isinstance(node, str) and node not in graph.by_id:
            tell(Fault(f"{path}.{key}", "UNKNOWN_NODE", f"there is no node {node[:63]!r}"))
        elif isinstance(node, str):
            ends.append(graph.by_id[node])
    if isinstance(edge.get("from"), str) and edge.get("from") == edge.get("to"):
        tell(Fault(path, "SELF_EDGE", f"{edge['from'][:63]!r} cannot wait for itself"))
    elif len(ends) == 2:
        graph.edges.append((ends[0], ends[1]))
        verdict.faults.extend(_branch_faults(edge.get("when"), f"{path}.when", ends[0], graph))


def _branch_faults(label: Any, path: str, start: int, graph: _Graph) -> Iterator[Fault]:
    if not isinstance(label, str) or label in _OUTCOMES:
        return
    source = graph.nodes[start]
    if start not in graph.branches:
        graph.branches[start] = modules.branches_of(source)
    branches = graph.branches[start]
    if branches is not None and label not in branches:
        taken = ", ".join(sorted(branches)) if 0 < len(branches) <= BRANCHES_TOLD_MAX else len(branches)
        message = f"{source['id'][:63]!r} never takes the branch {label[:63]!r}; its branches: {taken}"
        yield Fault(path, "UNKNOWN_BRANCH", message)


def _tell_twice(edges: list[Any], verdict: Verdict) -> None:
    """Edges with equal ends are duplicates only under the same condition: branches may meet again."""
    seen: dict[tuple[Any, Any, Any], int] = {}
    for place, edge in enumerate(edges):
        if not isinstance(edge, dict):
            continue
        ends = (edge.get("from"), edge.get("to"), edge.get("when", "success"))
        if not all(isinstance(end, str) for end in ends):
            continue
        if (first := seen.setdefault(ends, place)) != place:
            verdict.faults.append(Fault(f"edges[{place}]", "DUPLICATE_EDGE", f"is the same as edges[{first}]"))


def _examine_circles(graph: _Graph, verdict: Verdict) -> None:
    for circle in cycles(len(graph.nodes), graph.edges):
        names = " → ".join(str(graph.nodes[node]["id"]) for node in circle)
        verdict.faults.append(Fault("edges", "CYCLE", f"these nodes wait for each other: {names}"))


def _examine_templates(document: Mapping[str, Any], graph: _Graph, verdict: Verdict) -> None:
    parser = templates.TemplateParser()
    before = ancestors(len(graph.nodes), graph.edges)
    for node, (description, place) in enumerate(zip(graph.nodes, graph.places, strict=True)):
        texts = _texts_of_node(description, f"nodes[{place}]")
        _examine_texts(texts, str(description["id"]), before[node], parser, graph, verdict)
    texts = (each for each in templates.texts_of(document.get("output"), "output") if templates.is_template(each[0]))
    _examine_texts(texts, OUTPUT, (1 << len(graph.nodes)) - 1, parser, graph, verdict)


def _texts_of_node(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """The templates of a node, each with its path."""
    expression = _EXPRESSIONS.get(str(node.get("module")))
    for key in ("config", "inputs"):
        for text, where in templates.texts_of(node.get(key), f"{path}.{key}"):
            if templates.is_template(text):
                yield text, where
            elif expression is not None and expression.fullmatch(where, len(path)):
                yield "{{ " + text + " }}", where


def _examine_texts(
    texts: Iterable[tuple[str, str]],
    reader: str,
    before: int,
    parser: templates.TemplateParser,
    graph: _Graph,
    verdict: Verdict,
) -> None:
    """`reader` has these templates. `before`: the nodes that they may read, as bits."""
    seen: set[str | None] = set()
    for text, where in texts:
        if len(verdict.faults) >= FAULTS_MAX:
            return
        for reference in parser.references(text, where, verdict.faults.append):
            seen.add(reference.node)
            verdict.faults.extend(_reference_faults(reference, before, graph))
    if seen:
        verdict.references[reader] = None if None in seen else sorted(name for name in seen if name)


def _reference_faults(reference: templates.Reference, before: int, graph: _Graph) -> Iterator[Fault]:
    if reference.node is None:
        return
    node = graph.by_id.get(reference.node)
    if node is None:
        yield Fault(reference.path, "TEMPLATE_REFERENCE", f"there is no node {reference.node[:63]!r}")
    elif not before >> node & 1:
        message = f"{reference.node!r} does not come before this node: its output may not exist yet"
        yield Fault(reference.path, "TEMPLATE_REFERENCE", message)
