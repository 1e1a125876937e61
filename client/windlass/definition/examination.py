"""Finds every fault of a workflow's definition, each with its path.

It works in layers. Values that are no JSON are named and taken out. A definition that is no object or too large ends
the examination. Then come single fields, then nodes and edges as a graph, then templates against that graph. A later
layer only uses what an earlier one found sound, so that one mistake does not show as ten faults.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.definition import json_values, modules, templates
from windlass.definition.compensation import compensating_module_faults, compensation_id, compensation_of
from windlass.definition.config_schemas import CONFIG_SCHEMAS
from windlass.definition.durations import parse_duration
from windlass.definition.faults import Fault, Faults
from windlass.definition.graph import ancestors, cycles
from windlass.definition.input_schemas import schema_fault
from windlass.definition.limits import DEFINITION_BYTES_MAX, EDGES_MAX, FAULTS_MAX, NODES_MAX
from windlass.definition.parsing import Format, LineOf, Parsed, parse
from windlass.definition.risks import risks_of
from windlass.definition.schema_faults import config_faults, field_faults
from windlass.definition.state_keys import state_faults
from windlass.definition.template_texts import body_of, is_child, texts_of_body, texts_of_compensation, texts_of_node
from windlass.definition.templates import TemplateText
from windlass.definition.verdict import Verdict

# The references of the workflow's `output` have this key; no node can have this id.
OUTPUT: Final = "$output"
# Members of a workflow or a node that its schema does not look into.
_INSIDE: Final = frozenset(
    {"nodes", "edges", "inputSchema", "initialState", "output", "config", "inputs", "compensate"}
)
_OUTCOMES: Final = frozenset({"success", "failure", "always"})
# Says why a value is no usable JSON Schema; None when it is one.
SchemaJudge = Callable[[Any], str | None]
# A message names at most this number of branches. If there are more, it gives their count.
BRANCHES_TOLD_MAX: Final = 20
# A path that leads into a node or an edge.
_IN_NODE: Final = re.compile(r"(nodes|edges)\[(\d+)\]")


def examine_text(text: str, format_: Format) -> Verdict:
    """Examine a definition as its author wrote it."""
    return examine_parsed(parse(text, format_))


def examine(document: Any, schemas: SchemaJudge = schema_fault) -> Verdict:
    """Examine a definition that is no text."""
    return examine_parsed(Parsed(document), schemas)


def examine_parsed(parsed: Parsed, schemas: SchemaJudge = schema_fault) -> Verdict:
    """Examine a parsed text, with another judge of its inputSchema."""
    if parsed.document is None and parsed.faults:
        return Verdict(Faults(parsed.faults))
    sifted = json_values.sift(parsed.document)
    verdict = _Examination(sifted.value, schemas).verdict
    # A value that was taken out is no second fault at its place, and no fault of the schema around it.
    rest = [fault for fault in verdict.faults if not _is_of_gap(fault, sifted.gaps)]
    faults = [*parsed.faults, *sifted.faults, *rest][:FAULTS_MAX]
    placed = [_placed(fault, sifted.value, parsed.line_of) for fault in faults]
    verdict.faults = sorted(placed, key=lambda fault: fault.line)
    warned = (verdict.own_modules, verdict.built_in_modules, verdict.rendered, verdict.evaluated, verdict.children)
    for warnings in warned:
        warnings[:] = [(module, _placed(each, sifted.value, parsed.line_of)) for module, each in warnings]
    verdict.risks[:] = [_placed(each, sifted.value, parsed.line_of) for each in verdict.risks]
    return verdict


def _placed(fault: Fault, document: Any, line_of: LineOf) -> Fault:
    """The fault with its line and its node: the one that its path leads into, or whose edge it is."""
    line = fault.line or line_of(fault.path)
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


def _is_of_gap(fault: Fault, gaps: Collection[str]) -> bool:
    if fault.reason == "BAD_SCHEMA":
        return any(gap.startswith(fault.path) for gap in gaps)
    return fault.path in gaps


class _Examination:
    """One document, and what is known of its graph. The number of a node is its place in the list of nodes."""

    def __init__(self, document: Any, schemas: SchemaJudge) -> None:
        self.verdict = Verdict()
        self._tell, self._tell_all = self.verdict.faults.append, self.verdict.faults.extend
        self._document: Mapping[str, Any] = document
        # The nodes that have an id of their own.
        self._numbers: dict[str, int] = {}
        self._edges: list[tuple[int, int]] = []
        # The place of each edge, by its ends and its condition.
        self._conditions: dict[tuple[str, str, str], int] = {}
        # The branches of each node that has outgoing edges; see modules.branches_of.
        self._branches: dict[int, frozenset[str] | None] = {}
        self._schemas = schemas
        self._tell_all(self._unreadable())
        if not self.verdict.faults:
            self._nodes = _listed(document, "nodes")
            self._examine_fields()
            self._examine_graph()
            self._examine_templates()
            self.verdict.name = document.get("name", "") if isinstance(document.get("name"), str) else ""

    def _unreadable(self) -> Iterator[Fault]:
        if not isinstance(self._document, dict):
            yield Fault("", "WRONG_TYPE", "a definition is an object")
            return
        self.verdict.canonical = json_values.canonical(self._document)
        if len(self.verdict.canonical) > DEFINITION_BYTES_MAX:
            yield too_large(f"{len(self.verdict.canonical)} bytes; ")
        for key, most in (("nodes", NODES_MAX), ("edges", EDGES_MAX)):
            if (count := len(_listed(self._document, key))) > most:
                yield Fault(key, f"TOO_MANY_{key.upper()}", f"{count} {key}; at most {most}")

    def _examine_fields(self) -> None:
        document = self._document
        self._tell_all(field_faults("workflow", _outline(document), ""))
        self._tell_all(_delay_faults(document, (), ""))
        if "inputSchema" in document:
            self._examine_schema(document["inputSchema"], "inputSchema")

    def _examine_schema(self, schema: Any, path: str) -> None:
        if (message := self._schemas(schema)) is not None:
            self._tell(Fault(path, "BAD_SCHEMA", message))

    def _examine_graph(self) -> None:
        for place, node in enumerate(self._nodes):
            self._tell_all(field_faults("node", _outline(node), f"nodes[{place}]"))
            if isinstance(node, dict):
                self._examine_node(node, place)
        for place, edge in enumerate(_listed(self._document, "edges")):
            self._tell_all(field_faults("edge", edge, f"edges[{place}]"))
            if isinstance(edge, dict):
                self._examine_edge(edge, place)
        self._tell_all(state_faults(self._nodes))
        for cycle in cycles(len(self._nodes), self._edges):
            names = " → ".join(str(self._nodes[node]["id"]) for node in cycle)
            self._tell(Fault("edges", "CYCLE", f"these nodes wait for each other: {names}"))

    def _examine_node(self, node: Mapping[str, Any], place: int) -> None:
        path = f"nodes[{place}]"
        identity, module = node.get("id"), node.get("module")
        self._tell_all(modules.module_faults(module, f"{path}.module"))
        self.verdict.risks.extend(risks_of(self._document, node, path))
        self._examine_module(node, path)
        if (form := modules.form_of(node)) is not None:
            self._examine_schema(form, f"{path}.config.form")
        body = body_of(node)
        if body is not None:
            raw, inside = node["config"]["body"], f"{path}.config.body"
            self._tell_all(modules.body_module_faults(str(module), raw, inside))
            if is_child(node):
                self._examine_child(raw["workflow"], f"{inside}.workflow")
            else:
                self._examine_module(body, inside)
            if "until" in node["config"]:
                self._warn_of_until(str(body.get("module")), f"{path}.config.until")
        if "retry" in node:
            self._tell_all(_delay_faults(node, (self._document,), f"{path}."))
        compensation = compensation_of(node)
        if compensation is not None:
            self._examine_compensation(compensation, node, f"{path}.compensate")
        if isinstance(identity, str) and (first := self._numbers.setdefault(identity, place)) != place:
            self._tell(Fault(f"{path}.id", "DUPLICATE_ID", f"{identity!r} is also nodes[{first}]"))

    def _examine_compensation(self, part: Mapping[str, Any], node: Mapping[str, Any], path: str) -> None:
        self._tell_all(field_faults("compensation", _outline(part), path))
        self._tell_all(compensating_module_faults(part.get("module"), f"{path}.module"))
        self._examine_module(part, path)
        if "retry" in part:
            self._tell_all(_delay_faults(part, (self._document, node), f"{path}."))

    def _examine_module(self, part: Mapping[str, Any], path: str) -> None:
        """The module and the config of a node, of its compensation, or of the body of a loop."""
        module, config = part.get("module"), part.get("config", {})
        if isinstance(module, str) and isinstance(config, dict):
            self._tell_all(config_faults(module, config, f"{path}.config"))
        if isinstance(module, str) and "@" in module and modules.is_own(module):
            message = f"{module} is not built in: its work waits until a runner announces it"
            self.verdict.own_modules.append((module, Fault(f"{path}.module", "MODULE_NOT_BUILT_IN", message)))
        if isinstance(module, str) and module in CONFIG_SCHEMAS and module not in modules.CONTROL_MODULES:
            message = f"no connected runner does {module}: its work waits until one announces it"
            warning = Fault(f"{path}.module", "MODULE_NOT_ANNOUNCED", message)
            self.verdict.built_in_modules.append((module, warning))
        if module == modules.SUB_WORKFLOW and isinstance(config, dict):
            self._examine_child(config.get("workflow"), f"{path}.config.workflow")

    def _examine_child(self, workflow: Any, path: str) -> None:
        """The workflow that a node starts need not exist yet, so nothing here is a fault."""
        if not isinstance(workflow, str) or templates.is_template(workflow):
            return
        message = f"the workspace has no workflow {workflow[:63]!r} to start: the node fails until it is applied"
        self.verdict.children.append((workflow, Fault(path, "WORKFLOW_NOT_FOUND", message)))

    def _examine_edge(self, edge: Mapping[str, Any], place: int) -> None:
        path = f"edges[{place}]"
        start, end, label = edge.get("from"), edge.get("to"), edge.get("when", "success")
        for key, node in (("from", start), ("to", end)):
            if isinstance(node, str) and node not in self._numbers:
                self._tell(Fault(f"{path}.{key}", "UNKNOWN_NODE", f"there is no node {node[:63]!r}"))
        if not isinstance(start, str) or not isinstance(end, str):
            return
        # Edges with equal ends are duplicates only under the same condition: branches may meet again.
        if isinstance(label, str) and (first := self._conditions.setdefault((start, end, label), place)) != place:
            self._tell(Fault(path, "DUPLICATE_EDGE", f"is the same as edges[{first}]"))
        if start == end:
            self._tell(Fault(path, "SELF_EDGE", f"{start[:63]!r} cannot wait for itself"))
        elif start in self._numbers and end in self._numbers:
            self._edges.append((self._numbers[start], self._numbers[end]))
            self._tell_all(self._branch_faults(label, f"{path}.when", self._numbers[start]))

    def _branch_faults(self, label: Any, path: str, start: int) -> Iterator[Fault]:
        if not isinstance(label, str) or label in _OUTCOMES:
            return
        source = self._nodes[start]
        if start not in self._branches:
            self._branches[start] = modules.branches_of(source)
        branches = self._branches[start]
        if branches is not None and label not in branches:
            taken = ", ".join(sorted(branches)) if 0 < len(branches) <= BRANCHES_TOLD_MAX else len(branches)
            message = f"{source['id'][:63]!r} never takes the branch {label[:63]!r}; its branches: {taken}"
            yield Fault(path, "UNKNOWN_BRANCH", message)

    def _examine_templates(self) -> None:
        parser = templates.TemplateParser()
        before = ancestors(len(self._nodes), self._edges)
        for identity, place in self._numbers.items():
            node, path = self._nodes[place], f"nodes[{place}]"
            if self._examine_texts(texts_of_node(node, path), identity, before[place], parser):
                self._warn_of_templates(path, _renderer_of(str(node.get("module"))))
            body = body_of(node)
            if body is not None:
                texts = texts_of_body(node, body, f"{path}.config")
                if self._examine_texts(texts, modules.body_key(identity), before[place], parser):
                    self._warn_of_templates(f"{path}.config.body", _renderer_of(str(body.get("module"))))
            self._examine_texts_of_compensation(node, path, before[place] | 1 << place, parser)
        output = templates.texts_of(self._document.get("output"), "output")
        texts = (TemplateText(*each) for each in output if templates.is_template(each[0]))
        self._examine_texts(texts, OUTPUT, (1 << len(self._nodes)) - 1, parser)
        if "output" in self._document:
            self._warn_of_templates("output", modules.RENDERER)

    def _examine_texts_of_compensation(
        self, node: Mapping[str, Any], path: str, before: int, parser: templates.TemplateParser
    ) -> None:
        """It sees what its node sees, and the node."""
        part = compensation_of(node)
        if part is not None:
            texts = texts_of_compensation(part, f"{path}.compensate")
            if self._examine_texts(texts, compensation_id(node["id"]), before, parser):
                self._warn_of_templates(f"{path}.compensate", str(part.get("module")))

    def _warn_of_until(self, module: str, path: str) -> None:
        message = f"no connected runner that does {module} evaluates `until`: the work waits until one does"
        self.verdict.evaluated.append((module, Fault(path, "NOT_RENDERED", message)))

    def _warn_of_templates(self, path: str, module: str) -> None:
        message = f"no connected runner renders its templates: it waits until one that does {modules.RENDERER} is there"
        self.verdict.rendered.append((module, Fault(path, "NOT_RENDERED", message)))

    def _examine_texts(
        self, texts: Iterable[TemplateText], reader: str, before: int, parser: templates.TemplateParser
    ) -> bool:
        """`reader` has these templates. `before`: the nodes that they may read, as bits. False: there are none."""
        seen: set[str | None] = set()
        has_some = False
        for text in texts:
            has_some = True
            if len(self.verdict.faults) >= FAULTS_MAX:
                return True
            for reference in parser.references(text, self._tell):
                seen.add(reference.node)
                self._tell_all(self._reference_faults(reference, before))
        if seen:
            self.verdict.references[reader] = None if None in seen else sorted(name for name in seen if name)
        return has_some

    def _reference_faults(self, reference: templates.Reference, before: int) -> Iterator[Fault]:
        if reference.node is None:
            return
        node = self._numbers.get(reference.node)
        if node is None:
            yield Fault(reference.path, "TEMPLATE_REFERENCE", f"there is no node {reference.node[:63]!r}")
        elif not before >> node & 1:
            message = f"{reference.node!r} does not come before this node: its output may not exist yet"
            yield Fault(reference.path, "TEMPLATE_REFERENCE", message)


def _outline(part: Any) -> Any:
    """The part with its lists and its free JSON emptied: they are looked at elsewhere, and may be large."""
    if not isinstance(part, dict):
        return part
    return {
        key: type(value)() if key in _INSIDE and isinstance(value, dict | list) else value
        for key, value in part.items()
    }


def _renderer_of(module: str) -> str:
    """The module whose runner renders the templates of this one."""
    return modules.RENDERER if module in modules.CONTROL_MODULES else module


def _listed(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _delay_faults(part: Mapping[str, Any], around: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Fault]:
    """A member that a retry policy lacks has the value of what is around it: the default of docs/definitions.md, that
    of the workflow, that of the node."""
    whole: dict[str, Any] = {"initialDelay": "1s", "maxDelay": "300s"}
    for policy in (each.get("retry") for each in (*around, part)):
        whole |= policy if isinstance(policy, dict) else {}
    try:
        is_shorter = parse_duration(whole["maxDelay"]) < parse_duration(whole["initialDelay"])
    except ValueError:
        return  # this is another fault
    if is_shorter:
        yield Fault(f"{prefix}retry.maxDelay", "OUT_OF_RANGE", "must not be shorter than initialDelay")
