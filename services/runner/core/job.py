"""One attempt as the runner sees it, and the ways in which it can end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
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
    execution_input: NodeOutput
    state: bytes
    outputs: Mapping[str, NodeOutput]
    # 0 when there is none.
    timeout_seconds: float
    effect_key: str
    may_have_run_before: bool
    # Only the config, or inputs and config both, are rendered and returned.
    is_render_only: bool
    traceparent: str
    cursor: bytes
    # The deadline of the execution by this runner's clock, in ns since the epoch; 0 when there is none.
    deadline_ns: int = 0
    is_render_all: bool = False
    # Of an item or a turn of a loop, counted from 1. 0: it is none.
    iteration: int = 0
    # JSON. Empty: the work is no item of a list.
    item: bytes = b""
    # The expression that is evaluated after a turn of a loop. Empty: there is none.
    until: str = ""
    # A JSON object that is laid over the rendered inputs. Empty: none.
    input_overrides: bytes = b""
    # While a run of this workspace is going, the job begins only when fewer runs than this are going. 0: always.
    places_max: int = 0

    @property
    def lease(self) -> RunLease:
        return RunLease(self.run_id, self.epoch, self.workspace)


@dataclass(frozen=True, slots=True)
class Succeeded:
    output: NodeOutput
    branch: str = ""


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


# A lease is revoked for one of these reasons when its execution ends. Such an execution waits a moment until its runs
# report that they have stopped. For any other reason no report is expected.
ENDING_REASONS = frozenset({"CANCELLED", "TIMEOUT", "FAILED"})

AttemptOutcome = Succeeded | Failure | Released | Stopped


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


@dataclass(frozen=True, slots=True)
class News:
    """The progress of a run, which travels with a beat."""

    run_id: str
    epoch: int
    start_ns: int
    fraction: float
    message: str
    cursor: bytes
