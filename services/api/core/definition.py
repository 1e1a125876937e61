"""Whether a workflow's definition can be carried out: every fault at once, each with its path.

In layers: what is no JSON is told and taken out; what makes the rest unreadable (no object, too large) ends the
examination; then each field by itself; then nodes and edges as a graph; then templates against that graph. A later
layer works on what an earlier one left whole, so that one slip does not show as ten.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from services.api.core import fields, json_values, modules, templates
from services.api.core.faults import FAULTS_MAX, Fault, Faults
from services.api.core.graph import ancestors, cycles

DEFINITION_BYTES_MAX: Final = 1024 * 1024
NODES_MAX: Final = 2_000
EDGES_MAX: Final = 20_000

NAME_FORM: Final = r"[a-z][a-z0-9-]{0,62}"
NODE_ID_FORM: Final = r"[a-z][a-z0-9_]{0,62}"
BRANCH_FORM: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
# Fields that are expressions as they stand: what would stand between the braces of a template.
_EXPRESSIONS: Final = {
    "condition@1": re.compile(r"\.config\.expression"),
    "switch@1": re.compile(r"\.config\.cases\[\d+\]\.when"),
}


class SchemaReader(Protocol):
    def fault(self, schema: Any) -> str | None:
        """Why this is no JSON Schema that stands on its own; None when it is one."""
        ...


@dataclass
class Verdict:
    """Without faults the definition can be applied; `canonical` is then what is stored."""

    faults: list[Fault] = field(default_factory=Faults)
    # Modules that are somebody's own, by the path that names them.
    own_modules: dict[str, str] = field(default_factory=dict)
    name: str = ""
    canonical: bytes = b""


@dataclass
class _Graph:
    """Nodes that have an id, by place; what cannot be placed is left out."""

    nodes: list[Mapping[str, Any]]
    # Place in the definition's list of each node in `nodes`.
    places: list[int]
    by_id: dict[str, int]
    edges: list[tuple[int, int]] = field(default_factory=list)


_WORKFLOW: Final[Mapping[str, fields.Check | None]] = {
    "name": fields.form(NAME_FORM, "MALFORMED_NAME"),
    "description": fields.text(4_096),
    "inputSchema": None,
    "initialState": fields.mapping,
    "timeout": fields.timeout,
    "onFailure": fields.one_of("CONTINUE", "FAIL_FAST"),
    "retry": fields.retry,
    "nodes": None,
    "edges": None,
    "output": None,
}
_NODE: Final[Mapping[str, fields.Check | None]] = {
    "id": fields.form(NODE_ID_FORM, "MALFORMED_ID"),
    "module": None,
    "description": fields.text(4_096),
    "config": fields.mapping,
    "inputs": fields.mapping,
    "timeout": fields.timeout,
    "retry": None,
    "idempotent": fields.flag,
    "join": fields.one_of("ALL", "ANY"),
    "runnerLabels": fields.labels,
}


def examine(document: Any, reader: templates.TemplateReader, schemas: SchemaReader) -> Verdict:
    """All that can be said of a definition, in the order of its lines as far as possible."""
    sifted = json_values.sift(document)
    verdict = Verdict()
    verdict.faults.extend(_unreadable(sifted.value, verdict))
    if not verdict.faults:
        _examine_parts(sifted.value, reader, schemas, verdict)
    # A gap is no second fault where it is, and none of the schema around it.
    rest = [fault for fault in verdict.faults if not _is_of_gap(fault, sifted.gaps)]
    verdict.faults = (sifted.faults + rest)[:FAULTS_MAX]
    return verdict


def too_large(how: str = "") -> Fault:
    return Fault("", "TOO_LARGE", f"{how}at most {DEFINITION_BYTES_MAX} bytes")


def warnings_of(verdict: Verdict, announced: Collection[str]) -> list[Fault]:
    """Modules that are neither built in nor announced by a runner: accepted, but their work waits."""
    message = "{} is not built in, and no runner announces it: its work waits until one does"
    return [
        Fault(path, "MODULE_NOT_BUILT_IN", message.format(module))
        for path, module in verdict.own_modules.items()
        if module not in announced
    ]


def _is_of_gap(fault: Fault, gaps: Collection[str]) -> bool:
    if fault.reason == "BAD_SCHEMA":
        return any(gap.startswith(fault.path) for gap in gaps)
    return fault.path in gaps


def _examine_parts(
    document: Mapping[str, Any], reader: templates.TemplateReader, schemas: SchemaReader, verdict: Verdict
) -> None:
    _examine_fields(document, schemas, verdict)
    graph = _graph(document, verdict)
    _examine_circles(graph, verdict)
    _examine_templates(document, graph, reader, verdict)
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


def _examine_fields(document: Mapping[str, Any], schemas: SchemaReader, verdict: Verdict) -> None:
    tell = verdict.faults.append
    if "name" not in document:
        tell(Fault("name", "REQUIRED", f"must be set, in the form {NAME_FORM}"))
    verdict.faults.extend(fields.members(document, "", _WORKFLOW))
    if "inputSchema" in document and (message := schemas.fault(document["inputSchema"])) is not None:
        tell(Fault("inputSchema", "BAD_SCHEMA", message))


def _graph(document: Mapping[str, Any], verdict: Verdict) -> _Graph:
    graph = _Graph([], [], {})
    policy = document.get("retry")
    inherited = policy if isinstance(policy, dict) else None
    for place, node in enumerate(_listed(document, "nodes", verdict)):
        path = f"nodes[{place}]"
        if not isinstance(node, dict):
            verdict.faults.append(Fault(path, "WRONG_TYPE", "a node is an object"))
            continue
        verdict.faults.extend(_node_faults(node, path, inherited))
        _note_own(node, path, verdict)
        _place(node, place, graph, verdict)
    for place, edge in enumerate(_listed(document, "edges", verdict)):
        _link(edge, f"edges[{place}]", graph, verdict)
    _tell_twice(document.get("edges"), verdict)
    return graph


def _listed(document: Mapping[str, Any], key: str, verdict: Verdict) -> list[Any]:
    value = document.get(key, [])
    if isinstance(value, list):
        return value
    verdict.faults.append(Fault(key, "WRONG_TYPE", "must be a list"))
    return []


def _node_faults(node: Mapping[str, Any], path: str, inherited: Mapping[str, Any] | None) -> Iterator[Fault]:
    if "id" not in node:
        yield Fault(f"{path}.id", "REQUIRED", f"must be set, in the form {NODE_ID_FORM}")
    yield from fields.members(node, path, _NODE)
    module = node.get("module")
    yield from modules.module_faults(module, f"{path}.module")
    config = node.get("config", {})
    checks = modules.CONFIG_CHECKS.get(module) if isinstance(module, str) else None
    if checks is not None and isinstance(config, dict):
        yield from checks(config, f"{path}.config")
    if "retry" in node:
        yield from fields.retry(node["retry"], f"{path}.retry", inherited)


def _note_own(node: Mapping[str, Any], path: str, verdict: Verdict) -> None:
    module = node.get("module")
    if isinstance(module, str) and "@" in module and modules.is_own(module):
        verdict.own_modules[f"{path}.module"] = module


def _place(node: Mapping[str, Any], place: int, graph: _Graph, verdict: Verdict) -> None:
    identity = node.get("id")
    if not isinstance(identity, str):
        return
    if identity in graph.by_id:
        first = graph.places[graph.by_id[identity]]
        verdict.faults.append(
            Fault(f"nodes[{place}].id", "DUPLICATE_ID", f"{identity!r} is also nodes[{first}]")
        )
        return
    graph.by_id[identity] = len(graph.nodes)
    graph.nodes.append(node)
    graph.places.append(place)


def _link(edge: Any, path: str, graph: _Graph, verdict: Verdict) -> None:
    tell = verdict.faults.append
    if not isinstance(edge, dict):
        tell(Fault(path, "WRONG_TYPE", "an edge is an object with from and to"))
        return
    verdict.faults.extend(fields.members(edge, path, {"from": None, "to": None, "when": _when}))
    ends: list[int] = []
    for key in ("from", "to"):
        node = edge.get(key)
        if not isinstance(node, str):
            tell(Fault(f"{path}.{key}", "REQUIRED", "must name a node"))
        elif node not in graph.by_id:
            tell(Fault(f"{path}.{key}", "UNKNOWN_NODE", f"there is no node {node[:63]!r}"))
        else:
            ends.append(graph.by_id[node])
    if isinstance(edge.get("from"), str) and edge.get("from") == edge.get("to"):
        tell(Fault(path, "SELF_EDGE", f"{edge['from'][:63]!r} cannot wait for itself"))
    elif len(ends) == 2:
        graph.edges.append((ends[0], ends[1]))


def _when(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, bool):
        yield Fault(path, "WRONG_TYPE", f'a branch is text: write "{str(value).lower()}" in quotes')
    else:
        yield from fields.form(BRANCH_FORM, "MALFORMED_BRANCH")(value, path)


def _tell_twice(edges: Any, verdict: Verdict) -> None:
    """The same ends under the same condition; under different ones both are meant (branches that meet again)."""
    seen: dict[tuple[str, str, str], int] = {}
    for place, edge in enumerate(edges if isinstance(edges, list) else ()):
        if not isinstance(edge, dict):
            continue
        ends = (edge.get("from"), edge.get("to"), edge.get("when", "success"))
        if not all(isinstance(end, str) for end in ends):
            continue
        first = seen.setdefault((str(ends[0]), str(ends[1]), str(ends[2])), place)
        if first != place:
            verdict.faults.append(
                Fault(f"edges[{place}]", "DUPLICATE_EDGE", f"is the same as edges[{first}]")
            )


def _examine_circles(graph: _Graph, verdict: Verdict) -> None:
    for circle in cycles(len(graph.nodes), graph.edges):
        names = " → ".join(str(graph.nodes[node]["id"]) for node in circle)
        verdict.faults.append(Fault("edges", "CYCLE", f"these nodes wait for each other: {names}"))


def _examine_templates(
    document: Mapping[str, Any], graph: _Graph, reader: templates.TemplateReader, verdict: Verdict
) -> None:
    reader = templates.BoundedReader(reader)
    before = ancestors(len(graph.nodes), graph.edges)
    for node, (description, place) in enumerate(zip(graph.nodes, graph.places, strict=True)):
        for reference in _references_of_node(description, f"nodes[{place}]", reader, verdict):
            verdict.faults.extend(_reference_faults(reference, before[node], graph))
    everyone = (1 << len(graph.nodes)) - 1
    for text, path in templates.texts_of(document.get("output"), "output"):
        if templates.is_template(text):
            for reference in templates.read(text, path, reader, verdict.faults.append):
                verdict.faults.extend(_reference_faults(reference, everyone, graph))


def _references_of_node(
    node: Mapping[str, Any], path: str, reader: templates.TemplateReader, verdict: Verdict
) -> Iterator[templates.Reference]:
    for key in ("config", "inputs"):
        for text, where in templates.texts_of(node.get(key), f"{path}.{key}"):
            if len(verdict.faults) >= FAULTS_MAX:
                return
            expression = _EXPRESSIONS.get(str(node.get("module")))
            if templates.is_template(text):
                yield from templates.read(text, where, reader, verdict.faults.append)
            elif expression is not None and expression.fullmatch(where, len(path)):
                yield from templates.read("{{ " + text + " }}", where, reader, verdict.faults.append)


def _reference_faults(reference: templates.Reference, before: int, graph: _Graph) -> Iterator[Fault]:
    node = graph.by_id.get(reference.node)
    if node is None:
        yield Fault(reference.path, "TEMPLATE_REFERENCE", f"there is no node {reference.node[:63]!r}")
    elif not before >> node & 1:
        message = f"{reference.node!r} does not come before this node: its output may not exist yet"
        yield Fault(reference.path, "TEMPLATE_REFERENCE", message)
