"""Compiles the document of a workflow version to the `Definition` that the core walks.

Hazards: the api validated the document when it was applied. A document that is broken here was changed in the database
or let through by a bug, so it raises `BrokenInvariant`. Cycles alone are not looked for again; the api refuses them.
Unknown fields are ignored, so that a newer api may add some.
"""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from services.coordinator.core.controls import CONTROLS
from services.coordinator.core.definition import OUTPUT_NODE, Definition, Edge, JoinRule, Node, When
from services.coordinator.core.retry import RetryOverrides
from services.coordinator.core.state_paths import state_paths
from services.coordinator.core.values import BrokenInvariant, Span, WorkKey
from windlass.definition.compensation import compensation_id
from windlass.definition.config_schemas import LOOP_MODULES, OF_BODY, RAW_MEMBERS
from windlass.definition.durations import parse_duration
from windlass.definition.modules import RENDERER, STATE_SETTER, body_key
from windlass.definition.targets import HTTP_REQUEST, http_target
from windlass.definition.template_texts import body_of
from windlass.definition.templates import is_template

Document = Mapping[str, Any]
# Each node has the nodes whose outputs its templates read. None: all nodes before it.
References = Mapping[str, Sequence[str] | None]

_WHENS = {"success": When.SUCCESS, "failure": When.FAILURE, "always": When.ALWAYS}


def compile_definition(document: Document, references: References = MappingProxyType({})) -> Definition:
    """`references` were found when the version was applied and are stored with it. A node without any reads none."""
    try:
        return _compile(document, references)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise BrokenInvariant(f"a stored definition does not compile: {fault!r}") from fault


def _compile(document: Document, references: References) -> Definition:
    items: Sequence[Document] = document.get("nodes") or []
    seen = _References(items, document.get("edges") or [], references)
    workflow_retry = _retry(document)
    graph = [_with_compensation(_node(item, workflow_retry, seen), item, seen) for item in items]
    nodes = {node.id: node for node in graph}
    if len(nodes) != len(graph):
        raise BrokenInvariant("two nodes of a stored definition have the same id")
    nodes |= {node.compensation.id: node.compensation for node in graph if node.compensation is not None}
    output_node = _output_node(document, workflow_retry, seen)
    return Definition(
        nodes=nodes if output_node is None else {**nodes, OUTPUT_NODE: output_node},
        graph=tuple(graph),
        roots=tuple(node.id for node in graph if node.in_degree == 0),
        leaves=tuple(node.id for node in graph if not node.edges),
        timeout=_span(document, "timeout"),
        is_fail_fast=document.get("onFailure") == "FAIL_FAST",
        records_inputs=document.get("recordInputs", True),
        holds_failures=document.get("onFailure") == "HOLD",
        initial_state=_json(document.get("initialState") or {}),
        setters=seen.state.setters,
    )


def _edge(item: Document) -> Edge:
    label = str(item.get("when") or "success")
    when = _WHENS.get(label)
    return Edge(item["to"], When.LABEL, label) if when is None else Edge(item["to"], when, "")


def _node(item: Document, workflow_retry: RetryOverrides, seen: "_References") -> Node:
    node_id, module = item["id"], item["module"]
    body = _body(item, workflow_retry, seen) if module in LOOP_MODULES else None
    own_config = {key: value for key, value in (item.get("config") or {}).items() if not (body and key in OF_BODY)}
    config, inputs = _json(own_config), _json(item.get("inputs") or {})
    if module == STATE_SETTER:
        # The keys that it sets. A runner renders the config of a control node.
        config, inputs = inputs, b"{}"
    has_templates = _has_templates(module, config, inputs)
    control = CONTROLS.get(module)
    if control is not None and not control.has_config:
        # It has nothing to render.
        has_templates = False
    edges, state_from = seen.edges[node_id], seen.state.origins.get(node_id, ())
    return Node(
        id=node_id,
        key=WorkKey(node_id),
        module=module,
        config=config,
        inputs=inputs,
        has_templates=has_templates,
        timeout=_span(item, "timeout"),
        retry=_retry(item).over(workflow_retry) if "retry" in item else workflow_retry,
        # A control node is only rendered on a runner, which has no effect.
        is_idempotent=control is not None or bool(item.get("idempotent", False)),
        join=JoinRule(item.get("join") or "ALL"),
        runner_labels=_runner_labels(item),
        is_control=control is not None,
        needs_runner=control is None or has_templates,
        edges=tuple(edges),
        targets=_targets(edges),
        in_degree=len(seen.sources[node_id]),
        is_failure_handled=any(edge.when is When.FAILURE for edge in edges),
        references=seen.by_node(node_id) if has_templates else (),
        has_control_inputs=control is not None and control.has_inputs,
        has_own_retry="retry" in item,
        reads_execution=has_templates and _reads(b"execution", config, inputs),
        state_from=state_from,
        begins_on_one_path=len(state_from) > 1 and item.get("join") == "ANY",
        state_after=seen.state.after.get(node_id, ""),
        body=body,
        target=_target(module, item.get("config") or {}),
    )


def _body(item: Document, workflow_retry: RetryOverrides, seen: "_References") -> Node:
    """The loop does this for each item. It is a node like any other, with the loop's own id, policies and place."""
    config = item["config"]
    until = str(config.get("until") or "")
    of_body = {key: value for key, value in item.items() if key not in ("config", "inputs")} | dict(body_of(item) or {})
    node = _node(of_body, workflow_retry, seen)
    has_templates = node.has_templates or bool(until)
    return replace(
        node,
        has_templates=has_templates,
        # The loop decides what its failure means.
        is_failure_handled=True,
        edges=(),
        targets=(),
        in_degree=0,
        references=seen.by_node(node.id, body_key(node.id)) if has_templates else (),
        reads_execution=node.reads_execution or _reads(b"execution", until.encode()),
        until=until,
    )


def _with_compensation(node: Node, item: Document, seen: "_References") -> Node:
    own: Document | None = item.get("compensate")
    if own is None:
        return node
    config, inputs = _json(own.get("config") or {}), _json(own.get("inputs") or {})
    node_id, module = compensation_id(node.id), own["module"]
    has_templates = _has_templates(module, config, inputs)
    compensation = Node(
        id=node_id,
        key=WorkKey(node_id),
        module=module,
        config=config,
        inputs=inputs,
        has_templates=has_templates,
        # What it does not say itself is as its node says.
        timeout=_span(own, "timeout") or node.timeout,
        retry=_retry(own).over(node.retry),
        runner_labels=_runner_labels(own) or node.runner_labels,
        is_idempotent=bool(own.get("idempotent", False)),
        # How the execution ends is decided already.
        is_failure_handled=True,
        references=seen.by_compensation(node.id) if has_templates else (),
        undoes=node.id,
        reads_execution=has_templates and _reads(b"execution", config, inputs),
    )
    return replace(node, compensation=compensation)


def _has_templates(module: str, config: bytes, inputs: bytes) -> bool:
    """An expression without braces reads what a template reads."""
    return module in RAW_MEMBERS or is_template((config + inputs).decode())


def _runner_labels(document: Document) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((document.get("runnerLabels") or {}).items()))


def _reads(name: bytes, *documents: bytes) -> bool:
    """False: no template of these documents reads what has this name, because the word does not occur in them."""
    return any(name in document for document in documents)


def _target(module: str, config: Document) -> str:
    """The target that the node calls. "": a template says so, or it calls none."""
    url = config.get("url") if module == HTTP_REQUEST else None
    name = http_target(url) if isinstance(url, str) and not is_template(url) else ""
    return f"{module} {name}" if name else ""


def _targets(edges: Sequence[Edge]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    places: dict[str, tuple[int, ...]] = {}
    for place, edge in enumerate(edges):
        places[edge.target] = (*places.get(edge.target, ()), place)
    return tuple(places.items())


def _output_node(document: Document, workflow_retry: RetryOverrides, seen: "_References") -> Node | None:
    template = document.get("output")
    if template is None:
        return None
    inputs = _json(template)
    return Node(
        id=OUTPUT_NODE,
        key=WorkKey(OUTPUT_NODE),
        module=RENDERER,
        inputs=inputs,
        has_templates=True,
        retry=workflow_retry,
        is_idempotent=True,
        references=seen.by_output(),
        reads_execution=_reads(b"execution", inputs),
        state_from=seen.state.origins.get(OUTPUT_NODE, ()) if _reads(b"state", inputs) else (),
    )


class _References:
    """Finds the nodes that the templates of a node may see, and do see, and from where it has its state."""

    def __init__(self, nodes: Sequence[Document], edges: Sequence[Document], given: References) -> None:
        self._given = given
        # Whole lists once, not a search of all edges per node: a fan-out of 1,000 is compiled in milliseconds.
        self.sources: dict[str, list[str]] = {item["id"]: [] for item in nodes}
        self.edges: dict[str, list[Edge]] = {item["id"]: [] for item in nodes}
        for item in edges:
            self.sources[item["to"]].append(item["from"])
            self.edges[item["from"]].append(_edge(item))
        self.state = state_paths(nodes, self.sources)

    def by_node(self, node_id: str, reader: str = "") -> tuple[str, ...]:
        """`reader`: has the templates, if it is not the node itself."""
        names = self._given.get(reader or node_id, ())
        return self._in_order(self._ancestors(node_id) if names is None else set(names))

    def by_compensation(self, node_id: str) -> tuple[str, ...]:
        names = self._given.get(compensation_id(node_id), ())
        return self._in_order({*self._ancestors(node_id), node_id} if names is None else set(names))

    def by_output(self) -> tuple[str, ...]:
        names = self._given.get(OUTPUT_NODE, ())
        return self._in_order(self.sources if names is None else set(names))

    def _in_order(self, names: Container[str]) -> tuple[str, ...]:
        """They stand in the order of the document, so that every process hands the same inputs to a runner."""
        return tuple(node_id for node_id in self.sources if node_id in names)

    def _ancestors(self, node_id: str) -> set[str]:
        found: set[str] = set()
        open_ids = list(self.sources[node_id])
        while open_ids:
            source = open_ids.pop()
            if source not in found:
                found.add(source)
                open_ids.extend(self.sources[source])
        return found


def _retry(document: Document) -> RetryOverrides:
    policy: Document = document.get("retry") or {}
    attempts, factor = policy.get("attempts"), policy.get("factor")
    return RetryOverrides(
        attempts=None if attempts is None else int(attempts),
        initial_delay=_span_or_none(policy, "initialDelay"),
        factor=None if factor is None else float(factor),
        max_delay=_span_or_none(policy, "maxDelay"),
        budget=_span_or_none(policy, "budget"),
    )


def _span_or_none(document: Document, key: str) -> Span | None:
    value = document.get(key)
    return None if value is None else parse_duration(value)


def _span(document: Document, key: str) -> Span:
    return _span_or_none(document, key) or 0


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
