"""A workflow version as the core walks it: nodes by id, their edges, and policies joined.

A definition is immutable and shared by all executions of the version, so that starting one costs no parsing. It is
built from a document that was validated when it was applied: a fault here is a broken invariant (`compiling.py`).

Hazard: events name how the edges out of a node resolved by their order in the document. The order of `Node.edges` must
stay that order for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from services.coordinator.core.retry import RetryOverrides
from services.coordinator.core.values import Span, WorkKey
from windlass.definition.modules import RENDERER

# The node that renders the workflow's `output`. No user's node can have this id.
OUTPUT_NODE = "$output"


class When(IntEnum):
    """On which outcome of its source an edge is taken. The order is that of the table in `graph.py`."""

    SUCCESS = 0
    FAILURE = 1
    ALWAYS = 2
    LABEL = 3


class JoinRule(Enum):
    ALL = "ALL"
    ANY = "ANY"


class Edge(NamedTuple):
    target: str
    when: When
    # The branch, for When.LABEL.
    label: str


class Setter(NamedTuple):
    """A node that sets keys of the workflow's state. `before` has the bits of all such nodes before it."""

    bit: int
    before: int


class RunnerNeeds(NamedTuple):
    """What a runner must offer for a node, and be able to do."""

    module: str
    labels: tuple[tuple[str, str], ...]
    # It has to render templates.
    is_templated: bool
    # It has to evaluate an expression after the work.
    has_until: bool


@dataclass(slots=True, frozen=True, eq=False)
class Node:
    id: str
    # The key of its first work.
    key: WorkKey
    module: str
    # JSON objects with their templates unresolved.
    config: bytes = b"{}"
    inputs: bytes = b"{}"
    has_templates: bool = False
    timeout: Span = 0
    retry: RetryOverrides = RetryOverrides()
    is_idempotent: bool = False
    join: JoinRule = JoinRule.ALL
    runner_labels: tuple[tuple[str, str], ...] = ()
    # The core does the node itself (`controls/`).
    is_control: bool = False
    # A control node with templates needs one that renders its config.
    needs_runner: bool = True
    edges: tuple[Edge, ...] = ()
    # Every node that an edge leads to, with the places of its edges in `edges`: two branches may lead to one node.
    targets: tuple[tuple[str, tuple[int, ...]], ...] = ()
    in_degree: int = 0
    # An edge is taken when this node fails: its failure fails nothing else.
    is_failure_handled: bool = False
    # The nodes that the templates see.
    references: tuple[str, ...] = ()
    # How it is undone once it has succeeded, if the execution does not end well.
    compensation: "Node | None" = None
    # A compensation undoes this node. Empty: this is no compensation.
    undoes: str = ""
    # The templates may read `execution`.
    reads_execution: bool = False
    # The nodes whose states it sees merged (`state_paths.py`). Empty: it sees the initial state.
    state_from: tuple[str, ...] = ()
    # It sees the state of the path on which it begins, and none of the others.
    begins_on_one_path: bool = False
    # The node that has the state which the nodes behind this one see. Empty: they see the initial state.
    state_after: str = ""
    # A loop does this for each of its items. It has the id of the loop and no edges: its items settle with the loop.
    body: "Node | None" = None
    # The runner evaluates this expression after each turn. Only the body of a repeat@1 has one.
    until: str = ""
    # A control node that works on its inputs, so they are rendered with its config.
    has_control_inputs: bool = False
    # The node says itself how it is tried again.
    has_own_retry: bool = False
    # The node calls this, like "http.request@1 example.org:443". Empty: the definition does not say, and its runner
    # finds out.
    target: str = ""
    # These follow from the others. Each grant asks for them several times.
    # The module that a runner must offer for this node. A runner only renders the config of a control node.
    runner_module: str = field(init=False)
    # What its runner must offer and be able to do: module, labels, rendering, and an expression after the work.
    runner_needs: "RunnerNeeds" = field(init=False)

    def __post_init__(self) -> None:
        module = RENDERER if self.is_control else self.module
        object.__setattr__(self, "runner_module", module)
        needs = RunnerNeeds(module, self.runner_labels, self.has_templates, bool(self.until))
        object.__setattr__(self, "runner_needs", needs)

    @property
    def in_graph(self) -> bool:
        """It is a node of the author."""
        return self.id != OUTPUT_NODE and not self.undoes

    @property
    def runner_inputs(self) -> bytes:
        """The renderer returns its inputs, which are the config of a control node, or its config and inputs."""
        if self.has_control_inputs:
            return b'{"config":%b,"inputs":%b}' % (self.config, self.inputs)
        return self.config if self.is_control else self.inputs


@dataclass(slots=True, frozen=True, eq=False)
class Definition:
    # Every node by id, in the order of the document. Behind them are the compensations, and last `$output` if the
    # workflow has an output template; no edge leads to these.
    nodes: Mapping[str, Node]
    # The nodes of the graph, without compensations and `$output`.
    graph: Sequence[Node]
    roots: tuple[str, ...]
    leaves: tuple[str, ...]
    timeout: Span = 0
    is_fail_fast: bool = False
    # Work that failed for good waits for a person.
    holds_failures: bool = False
    # What runners render for a node that fails is kept for people.
    records_inputs: bool = True
    initial_state: bytes = b"{}"
    # The nodes that set keys of the state.
    setters: Mapping[str, Setter] = field(default_factory=dict)

    @property
    def output_node(self) -> Node | None:
        return self.nodes.get(OUTPUT_NODE)
