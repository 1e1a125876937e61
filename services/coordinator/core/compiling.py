"""From the document of a workflow version to the `Definition` that the core walks.

Hazards: the document was validated by the api when it was applied, with all its faults named to its author. What is
found broken here was either changed in the database or let through: `BrokenInvariant`, never a fault list. Fields that
this version does not know are passed over, so that a newer api may add some.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from services.coordinator.core.definition import (
    OUTPUT_NODE,
    RENDERER,
    Control,
    Definition,
    Edge,
    Join,
    Node,
    Sleep,
    When,
)
from services.coordinator.core.notation import parse_instant, parse_span
from services.coordinator.core.retry import RetryOverrides
from services.coordinator.core.values import BrokenInvariant, Span

Document = Mapping[str, Any]

_CONTROLS = {control.value: control for control in Control}
# Their config is an expression without braces: it sees what a template sees.
_EXPRESSIVE = {"condition@1", "switch@1"}
_WHENS = {"success": When.SUCCESS, "failure": When.FAILURE, "always": When.ALWAYS}
# `nodes.fetch` or `nodes["fetch"]` inside a JSON text, where the quotes are escaped; group 1 is empty for other uses.
_REFERENCE = re.compile(r"""\bnodes\b(?:\s*(?:\.\s*|\[\s*\\?["'])([a-z][a-z0-9_]*))?""")


class _Link(NamedTuple):
    source: int
    edge: Edge


def compile_definition(
    document: Document, references: Mapping[str, Sequence[str]] | None = None
) -> Definition:
    """`references` names the nodes that each node's templates see; without it the texts are searched for them."""
    try:
        return _compile(document, references)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise BrokenInvariant(f"a stored definition does not compile: {fault!r}") from fault


def _compile(document: Document, references: Mapping[str, Sequence[str]] | None) -> Definition:
    items: Sequence[Document] = document.get("nodes") or []
    index = {item["id"]: number for number, item in enumerate(items)}
    if len(index) != len(items):
        raise BrokenInvariant("two nodes of a stored definition have one id")
    links = [_link(item, index) for item in document.get("edges") or []]
    order = _topological_order(len(items), links)
    seen = _References(index, links, order, references)
    workflow_retry = _retry(document)
    nodes = [_node(number, item, links, workflow_retry, seen) for number, item in enumerate(items)]
    output_node = _output_node(document, len(items), workflow_retry, seen)
    return Definition(
        name=str(document.get("name", "")),
        nodes=(*nodes, output_node) if output_node else tuple(nodes),
        index=index if output_node is None else {**index, OUTPUT_NODE: output_node.index},
        size=len(items),
        roots=tuple(node.index for node in nodes if node.in_degree == 0),
        leaves=tuple(node.index for node in nodes if not node.edges),
        timeout=_span(document, "timeout"),
        is_fail_fast=document.get("onFailure") == "FAIL_FAST",
        initial_state=_json(document.get("initialState") or {}),
        output_node=output_node,
    )


def _link(item: Document, index: Mapping[str, int]) -> _Link:
    label = str(item.get("when") or "success")
    when = _WHENS.get(label)
    edge = Edge(index[item["to"]], When.LABEL, label) if when is None else Edge(index[item["to"]], when, "")
    return _Link(index[item["from"]], edge)


def _topological_order(size: int, links: Sequence[_Link]) -> list[int]:
    in_degrees = [0] * size
    targets: list[list[int]] = [[] for _ in range(size)]
    for source, edge in links:
        in_degrees[edge.target] += 1
        targets[source].append(edge.target)
    order = [number for number in range(size) if in_degrees[number] == 0]
    for number in order:
        for target in targets[number]:
            in_degrees[target] -= 1
            if in_degrees[target] == 0:
                order.append(target)
    if len(order) != size:
        raise BrokenInvariant("a stored definition has a cycle")
    return order


def _node(
    number: int, item: Document, links: Sequence[_Link], workflow_retry: RetryOverrides, seen: "_References"
) -> Node:
    config, inputs = _json(item.get("config") or {}), _json(item.get("inputs") or {})
    has_templates = item["module"] in _EXPRESSIVE or any(
        mark in text for mark in (b"{{", b"{%") for text in (config, inputs)
    )
    control = _CONTROLS.get(item["module"])
    if control is Control.JOIN:
        # It has nothing to render.
        has_templates = False
    edges = seen.edges[number]
    return Node(
        index=number,
        id=item["id"],
        module=item["module"],
        config=config,
        inputs=inputs,
        has_templates=has_templates,
        timeout=_span(item, "timeout"),
        retry=_joined(_retry(item), workflow_retry),
        # A control node is only rendered on a runner, which has no effect.
        is_idempotent=control is not None or bool(item.get("idempotent", False)),
        join=Join(item.get("join") or "ALL"),
        runner_labels=tuple(sorted((item.get("runnerLabels") or {}).items())),
        control=control,
        sleep=_stored_sleep(item) if control is Control.SLEEP and not has_templates else None,
        edges=edges,
        in_degree=len(seen.sources[number]),
        is_failure_handled=any(edge.when is When.FAILURE for edge in edges),
        references=seen.by_node(number, item["id"], config + inputs) if has_templates else (),
    )


def _output_node(
    document: Document, number: int, workflow_retry: RetryOverrides, seen: "_References"
) -> Node | None:
    template = document.get("output")
    if template is None:
        return None
    inputs = _json(template)
    return Node(
        index=number,
        id=OUTPUT_NODE,
        module=RENDERER,
        inputs=inputs,
        has_templates=True,
        retry=workflow_retry,
        is_idempotent=True,
        references=seen.by_output(inputs),
    )


def _stored_sleep(item: Document) -> Sleep:
    """A version that was taken while there was no last instant goes on, as far as there are instants."""
    return read_sleep(item.get("config"), may_cut=True)


def read_sleep(config: object, *, may_cut: bool = False) -> Sleep:
    """What a sleep node's rendered config says; `ValueError` with a message for its author."""
    if not isinstance(config, Mapping) or ("duration" in config) == ("until" in config):
        raise ValueError("sleep@1 takes exactly one of duration and until")
    if "duration" in config:
        return Sleep(span=parse_span(config["duration"]))
    return Sleep(until=parse_instant(config["until"], may_cut=may_cut))


class _References:
    """Which nodes the templates of a node may see, and which they do."""

    def __init__(
        self,
        index: Mapping[str, int],
        links: Sequence[_Link],
        order: Sequence[int],
        given: Mapping[str, Sequence[str]] | None,
    ) -> None:
        self._index, self._given, self._order = index, given, order
        sources: list[list[int]] = [[] for _ in order]
        edges: list[list[Edge]] = [[] for _ in order]
        for source, edge in links:
            sources[edge.target].append(source)
            edges[source].append(edge)
        # Whole lists once, not a search of all edges per node: a fan-out of 1,000 is compiled in milliseconds.
        self.sources = sources
        self.edges = [tuple(of_node) for of_node in edges]

    def by_node(self, number: int, node_id: str, text: bytes) -> tuple[int, ...]:
        return self._seen(node_id, text, lambda: self._ancestors(number))

    def by_output(self, text: bytes) -> tuple[int, ...]:
        return self._seen(OUTPUT_NODE, text, lambda: set(self._order))

    def _seen(self, node_id: str, text: bytes, everything: Callable[[], Iterable[int]]) -> tuple[int, ...]:
        if self._given is not None:
            return tuple(sorted(self._index[name] for name in self._given.get(node_id, ())))
        names = set(_REFERENCE.findall(text.decode()))
        if "" in names:
            # `nodes` itself, or a name that is computed: only the render will tell which.
            return tuple(sorted(everything()))
        return tuple(sorted(self._index[name] for name in names if name in self._index))

    def _ancestors(self, number: int) -> set[int]:
        found: set[int] = set()
        open_numbers = list(self.sources[number])
        while open_numbers:
            source = open_numbers.pop()
            if source not in found:
                found.add(source)
                open_numbers.extend(self.sources[source])
        return found


def _retry(document: Document) -> RetryOverrides:
    policy: Document = document.get("retry") or {}
    factor = policy.get("factor")
    return RetryOverrides(
        attempts=int(policy["attempts"]) if "attempts" in policy else None,
        initial_delay=_span(policy, "initialDelay") if "initialDelay" in policy else None,
        factor=float(factor) if factor is not None else None,
        max_delay=_span(policy, "maxDelay") if "maxDelay" in policy else None,
        budget=_span(policy, "budget") if "budget" in policy else None,
    )


def _joined(node: RetryOverrides, workflow: RetryOverrides) -> RetryOverrides:
    return RetryOverrides(
        workflow.attempts if node.attempts is None else node.attempts,
        workflow.initial_delay if node.initial_delay is None else node.initial_delay,
        workflow.factor if node.factor is None else node.factor,
        workflow.max_delay if node.max_delay is None else node.max_delay,
        workflow.budget if node.budget is None else node.budget,
    )


def _span(document: Document, key: str) -> Span:
    value = document.get(key)
    return 0 if value is None else parse_span(value)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
