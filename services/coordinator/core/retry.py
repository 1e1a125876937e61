"""Decides whether and when a piece of work is tried again.

A *failure* is an answer: the module ran and said no. A *death* is silence: the runner went away while it had the work.
They are counted apart, because a flaky target deserves its retries whatever happens to machines, and work that kills
its runner must be set apart however many retries it has. Hand-backs and an open circuit are neither.

    delay before attempt n+1 = random × min(cap, initial × factor^(n−1)), n = failures so far   (full jitter)
    never earlier than the target asked for (Retry-After)
    never later than first grant + budget: then it is not tried again

Hazards: the random number arrives in the call, in [0, 1). The policy in force is the one recorded at the start.
"""

from dataclasses import asdict, dataclass, replace
from typing import TypeVar, assert_never

from services.coordinator.core.values import SECOND, SPAN_MAX, Error, ErrorClass, FailureReason, Instant, Span

# After so many deaths of runners on the same work it is set apart.
DEATHS_MAX = 3
# A runner ends a run at its timeout by itself. The coordinator does so when it has heard nothing for this much longer.
BACKSTOP_MARGIN: Span = 5 * SECOND


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """`attempts` counts the first one: 1 = never again."""

    attempts: int = 3
    initial_delay: Span = SECOND
    factor: float = 2.0
    max_delay: Span = 300 * SECOND
    # It runs from the first grant of the work to its last. 0: unlimited.
    budget: Span = 3600 * SECOND


DEFAULT_RETRY = RetryPolicy()


_Policy = TypeVar("_Policy", RetryPolicy, "RetryOverrides")


@dataclass(slots=True, frozen=True)
class RetryOverrides:
    """A node or its workflow sets these differently. None: the value of the policy is used."""

    attempts: int | None = None
    initial_delay: Span | None = None
    factor: float | None = None
    max_delay: Span | None = None
    budget: Span | None = None

    def over(self, policy: _Policy) -> _Policy:
        """`policy` may itself be one of overrides: those of the workflow below those of a node."""
        return replace(policy, **{name: value for name, value in asdict(self).items() if value is not None})


def backoff(policy: RetryPolicy, failures: int, random: float) -> Span:
    """The wait after the n-th failure."""
    try:
        ceiling = policy.initial_delay * policy.factor ** (failures - 1)
    except OverflowError:
        # 10.0 ** 400 is no float. The cap decides anyway.
        ceiling = policy.max_delay
    return int(random * min(policy.max_delay, ceiling))


def judge_failure(
    policy: RetryPolicy,
    error_class: ErrorClass,
    failures: int,
    *,
    first_time: Instant,
    now: Instant,
    retry_after: Span,
    random: float,
) -> Instant | FailureReason:
    """The time of the next attempt, or why there is none. `failures` includes this one, if it counts as one."""
    match error_class:
        case ErrorClass.PERMANENT:
            return FailureReason.PERMANENT_ERROR
        case ErrorClass.TRANSIENT | ErrorClass.TIMEOUT:
            if failures >= policy.attempts:
                return FailureReason.MAX_RETRIES
        case ErrorClass.CIRCUIT_OPEN:
            pass
        case _:
            assert_never(error_class)
    retry_time = now + max(min(retry_after, SPAN_MAX), backoff(policy, max(failures, 1), random))
    if policy.budget and retry_time > first_time + policy.budget:
        return FailureReason.MAX_RETRIES
    return retry_time


def death_error(runner: str, reason: FailureReason | None) -> Error:
    """The error of a run whose runner died."""
    if reason is FailureReason.POISON:
        return Error(ErrorClass.PERMANENT, "POISON", f"{DEATHS_MAX} runners went away with it, the last was {runner}")
    return Error(ErrorClass.TRANSIENT, "RUNNER_LOST", f"the runner {runner} went away with it")
