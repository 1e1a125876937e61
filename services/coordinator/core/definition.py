"""A workflow version as the core walks it: nodes by number, edges resolved, policies joined.

Immutable and shared by all executions of the version, so that starting one costs no parsing.

Hazards: numbers of nodes are positions in `nodes` and are stored nowhere; the journal names nodes by id. Built from
definitions that were validated when they were applied: a fault here is a broken invariant (`compiling.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from services.coordinator.core.retry import RetryOverrides
from services.coordinator.core.values import Instant, Span

# The node that renders the workflow's `output`; no user node can have this name.
OUTPUT_NODE = "$output"
# What renders templates: every runner has it, and its output is its rendered inputs.
RENDERER = "transform@1"


class When(IntEnum):
    """On which outcome of its source an edge is taken. The order is that of the table in `graph.py`."""

    SUCCESS = 0
    FAILURE = 1
    ALWAYS = 2
    LABEL = 3


class Join(Enum):
    ALL = "ALL"
    ANY = "ANY"


class Control(Enum):
    """Nodes that the core does itself."""

    JOIN = "join@1"
    SLEEP = "sleep@1"


class Edge(NamedTuple):
    target: int
    when: When
    # Of the branch, for When.LABEL.
    label: str


@dataclass(slots=True, frozen=True)
class Sleep:
    """How long a sleep node waits: for a span from its start, or until an instant."""

    span: Span = 0
    until: Instant = 0


@dataclass(slots=True, frozen=True, eq=False)
class Node:
    index: int
    id: str
    module: str
    # JSON objects, templates unresolved.
    config: bytes = b"{}"
    inputs: bytes = b"{}"
    has_templates: bool = False
    timeout: Span = 0
    retry: RetryOverrides = RetryOverrides()
    is_idempotent: bool = False
    join: Join = Join.ALL
    runner_labels: tuple[tuple[str, str], ...] = ()
    control: Control | None = None
    # Of a sleep whose config holds no template.
    sleep: Sleep | None = None
    edges: tuple[Edge, ...] = ()
    in_degree: int = 0
    # An edge is taken when this node fails: its failure fails nothing else.
    is_failure_handled: bool = False
    # The nodes whose outputs the templates see.
    references: tuple[int, ...] = ()

    @property
    def needs_runner(self) -> bool:
        return self.control is None or self.has_templates

    @property
    def runner_module(self) -> str:
        """What a runner must offer to be granted this node: the config of a control node is only rendered there."""
        return self.module if self.control is None else RENDERER


@dataclass(slots=True, frozen=True, eq=False)
class Definition:
    """The last node is `$output` exactly if the workflow has an output template; it hangs on no edge."""

    name: str
    nodes: tuple[Node, ...]
    index: Mapping[str, int]
    # Nodes of the graph, without `$output`.
    size: int
    roots: tuple[int, ...]
    leaves: tuple[int, ...]
    timeout: Span = 0
    is_fail_fast: bool = False
    initial_state: bytes = b"{}"
    output_node: Node | None = field(default=None)
