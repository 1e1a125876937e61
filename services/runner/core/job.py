"""One attempt as the runner sees it, and how it can end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.runner.core.failures import Failure


@dataclass(frozen=True, slots=True)
class OutputRef:
    """A value too large to travel: where it is kept."""

    key: str
    sha256: str
    size_bytes: int


class OutputMissing(Exception):
    """A kept value is not there any more, or not what it was."""


Value = bytes | OutputRef


@dataclass(frozen=True, slots=True)
class Job:
    """The right, and all that is needed, to do one attempt. JSON stays bytes until it is looked at."""

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
    execution_input: bytes
    state: bytes
    outputs: Mapping[str, Value]
    # 0: none.
    timeout_seconds: float
    effect_key: str
    may_have_run_before: bool
    is_render_only: bool
    traceparent: str
    cursor: bytes
    # Of its execution, by this runner's clock, in ns since the epoch; 0: none.
    deadline_ns: int = 0


@dataclass(frozen=True, slots=True)
class Succeeded:
    output: Value
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """Handed back; no attempt is charged."""

    reason: str
    may_have_begun: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """Given up because its execution ends."""


# Why a lease is taken back when the execution ends as this, and waits a moment for its runs to have stopped. Of any
# other run nobody waits to hear.
ENDING_REASONS = frozenset({"CANCELLED", "TIMEOUT", "FAILED"})

Outcome = Succeeded | Failure | Released | Stopped


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that is over. Times by the runner's clock, in ns since the epoch; hashes empty when it never began."""

    job: Job
    outcome: Outcome
    start_ns: int
    end_ns: int
    inputs_hash: bytes = b""
    config_hash: bytes = b""
    cost_tokens: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """What a going run says with a beat."""

    run_id: str
    epoch: int
    start_ns: int
    fraction: float
    message: str
    cursor: bytes
