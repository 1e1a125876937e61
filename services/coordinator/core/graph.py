"""How outcomes travel along edges. The whole of it is two tables.

An edge resolves when its source settles, to one of three:

    source settled as     success      failure      always       label (matching / other)
    SUCCEEDED             TAKEN        SKIPPED      TAKEN        TAKEN / SKIPPED
    HANDLED               SKIPPED      TAKEN        TAKEN        SKIPPED      failed, and a failure edge leaves it
    FAILED                BLOCKED      TAKEN        TAKEN        BLOCKED      failed, and none does
    SKIPPED               SKIPPED      SKIPPED      SKIPPED      SKIPPED
    BLOCKED               BLOCKED      SKIPPED      TAKEN        BLOCKED

So a failure that nobody handles blocks what needs its success, all the way down, and nothing else; a failure with a
failure edge is a branch like any other; `always` is `finally`: it runs after success, after failure, and where a
failure further up means that its source never will, but not on a branch that was not chosen.
`always` cleans up, it does not absolve: only a failure edge makes a failure handled.

A node then waits (in-degree not counted down yet), starts, or settles without running:

    join   unresolved > 0                  all resolved
    ALL    wait                            one BLOCKED: blocked;  else one TAKEN: start;  else skipped
    ANY    one TAKEN: start;  else wait    one TAKEN: start;  else one BLOCKED: blocked;  else skipped
"""

from enum import IntEnum

from services.coordinator.core.definition import Edge, Join, When


class Outcome(IntEnum):
    """How a node settled; rows of the first table."""

    SUCCEEDED = 0
    HANDLED = 1
    FAILED = 2
    SKIPPED = 3
    BLOCKED = 4


class Resolution(IntEnum):
    TAKEN = 0
    SKIPPED = 1
    BLOCKED = 2


class Verdict(IntEnum):
    """What a node does now that one more of its edges is resolved."""

    WAIT = 0
    START = 1
    SKIP = 2
    BLOCK = 3


_T, _S, _B = Resolution.TAKEN, Resolution.SKIPPED, Resolution.BLOCKED

# Columns: success, failure, always, label that does not match.
RESOLUTIONS: tuple[tuple[Resolution, ...], ...] = (
    (_T, _S, _T, _S),
    (_S, _T, _T, _S),
    (_B, _T, _T, _B),
    (_S, _S, _S, _S),
    (_B, _S, _T, _B),
)


def resolve(outcome: Outcome, edge: Edge, branch: str) -> Resolution:
    if edge.when is When.LABEL and outcome is Outcome.SUCCEEDED and edge.label == branch:
        return Resolution.TAKEN
    return RESOLUTIONS[outcome][edge.when]


def judge(join: Join, unresolved: int, taken: int, blocked: int) -> Verdict:
    if taken and join is Join.ANY:
        return Verdict.START
    if unresolved:
        return Verdict.WAIT
    if blocked:
        return Verdict.BLOCK
    return Verdict.START if taken else Verdict.SKIP
