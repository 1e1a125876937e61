"""One attempt as the runner sees it, and the ways in which it can end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from services.runner.core.failures import Failure


class RunLease(NamedTuple):
    """The lease of a run. Large values are brought and fetched under it, and belong to its workspace."""

    run_id: str
    epoch: int
    workspace: str

    @property
    def execution_id(self) -> str:
        """The id of a run begins with that of its execution."""
        return self.run_id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """Names a value that is kept elsewhere, because it is too large for a report or a grant."""

    key: str
    # Empty when it is not known.
    sha256: str
    size_bytes: int
    # The run whose grant named the value, or that brought it. Coordinators give it to the holder of that run.
    lease: RunLease


class OutputMissing(Exception):
    """The store has lost or changed a value."""


NodeOutput = bytes | StoredOutput


# Not frozen, because every step makes one, and a frozen one takes three times as long. Nobody changes it.
@dataclass(slots=True)
class Job:
    """The lease of one attempt, with everything that the attempt needs. JSON stays bytes until it is needed."""

    run_id: str
    epoch: int
    execution_id: str
    workspace: str
    workflow: str
    node: str
    module: str
    attempt: int
    config: bytes
    inputs: bytes
    has_templates: bool
    # 0 when there is none.
    timeout_seconds: float
    effect_key: str
    may_have_run_before: bool
    # Only the config, or inputs and config both, are rendered and returned.
    is_render_only: bool
    traceparent: str
    cursor: bytes
    # The data that templates see. Empty: there are none.
    execution_input: NodeOutput = b""
    state: bytes = b""
    outputs: Mapping[str, NodeOutput] = field(default_factory=dict)
    # The deadline of the execution by this runner's clock, in ns since the epoch; 0 when there is none.
    deadline_ns: int = 0
    is_render_all: bool = False
    # The number of the item or the turn of a loop, counted from 1. 0: it is none.
    iteration: int = 0
    # JSON. Empty: the work is no item of a list.
    item: bytes = b""
    # The expression that is evaluated after a turn of a loop. Empty: there is none.
    until: str = ""
    # A JSON object that is laid over the rendered inputs. Empty: none.
    input_overrides: bytes = b""
    # While a run of this workspace is going, the job begins only when fewer runs than this are going. 0: always.
    places_max: int = 0
    # The permission to end this run, for whoever else finishes the work. Empty: the module cannot hand its work out.
    completion_token: str = ""
    # The nodes without an output that the templates read, each as the JSON that templates see of it.
    without_output: Mapping[str, bytes] = field(default_factory=dict)
    # Templates see these as `execution`, beside its id and its workflow. Empty: no template reads it.
    version: int = 0
    create_time: str = ""
    # The targets of its module that must not be called.
    open_targets: Collection[str] = ()
    # Why the execution does not end well, as JSON. Empty: the work undoes no node.
    error: bytes = b""

    @property
    def lease(self) -> RunLease:
        return RunLease(self.run_id, self.epoch, self.workspace)


@dataclass(frozen=True, slots=True)
class Succeeded:
    output: NodeOutput
    branch: str = ""


@dataclass(frozen=True, slots=True)
class EncodedOutput:
    """A built-in module may return its output as JSON that it has checked as `windlass.sdk.encoding` does. To search
    some megabytes again would keep the interpreter from all other threads for milliseconds."""

    json: bytes


@dataclass(frozen=True, slots=True)
class Released:
    """The run was handed back. No attempt is charged."""

    reason: str
    may_have_begun: bool
    # The last cursor of the attempt; empty when there is none.
    cursor: bytes = b""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was given up because its execution ends."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """The module has handed the work to somebody else, who has the completion token."""


# A lease is revoked for one of these reasons when its execution ends. Such an execution waits a moment until its runs
# report that they have stopped. For any other reason no report is expected.
ENDING_REASONS = frozenset({"CANCELLED", "TIMEOUT", "FAILED"})

AttemptOutcome = Succeeded | Failure | Released | Stopped | Deferred


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that is over. Times are the runner's, in ns since the epoch; hashes are empty when it never began."""

    job: Job
    outcome: AttemptOutcome
    start_ns: int
    end_ns: int
    inputs_hash: bytes = b""
    config_hash: bytes = b""
    cost_tokens: int = 0
    # The last cursor of an attempt that failed; empty when there is none.
    cursor: bytes = b""
    # The module called this, or did not call it because its circuit is open. Empty: it names nothing.
    target: str = ""
    # This was rendered for an attempt that failed, and is kept for people: JSON with config and inputs. Empty: nothing.
    rendered: bytes = b""


@dataclass(frozen=True, slots=True)
class News:
    """The progress of a run, which travels with a beat."""

    run_id: str
    epoch: int
    start_ns: int
    fraction: float
    message: str
    cursor: bytes
