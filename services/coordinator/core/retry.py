"""Decides whether and when a piece of work is tried again.

A *failure* is an answer: the module ran and reported an error. A *death* is silence: the runner went away while it had
the work. They are counted separately, because a flaky target deserves its retries whatever happens to machines, and
work that kills its runner must not run again however many retries it has. An open circuit is neither.

A hand-back is neither too, up to HAND_BACKS_MAX. The runner that handed the work back is not granted it again for a
while, which grows with each hand-back of the work. Any other runner may be granted it at once. So a runner that refuses
all that it is granted costs a few runs, and not thousands in a second.

    delay before attempt n+1 = random × min(cap, initial × factor^(n−1)), n = failures so far   (full jitter)
    never earlier than the target asked for (Retry-After)
    if that would be later than first grant + budget, it is not tried again

Hazards: the random number is given in the call and lies in [0, 1). The policy in force is the one recorded at the start
of the execution.
"""

from dataclasses import asdict, dataclass, replace
from typing import TypeVar, assert_never

from services.coordinator.core.values import SECOND, SPAN_MAX, Error, ErrorClass, FailureReason, Instant, Span

# After the deaths of this many runner instances with the same work, the work fails with POISON and is not tried again.
DEATHS_MAX = 3
# After a death, any other runner is given the work first. So a runner that dies again and again, which has the same
# name in each life, does not make the work of others look like poison.
DEATH_PAUSE: Span = SECOND
# Each further hand-back of the same work counts as a failure. With one runner, 100 of them take seven hours.
HAND_BACKS_MAX = 100
HAND_BACK_DELAY: Span = SECOND // 4
HAND_BACK_DELAY_MAX: Span = 300 * SECOND
# A runner ends a run at its timeout by itself. The coordinator does so when it has heard nothing for this much longer.
BACKSTOP_MARGIN: Span = 5 * SECOND


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """`attempts` includes the first one: 1 = no retry."""

    attempts: int = 3
    initial_delay: Span = SECOND
    factor: float = 2.0
    max_delay: Span = 300 * SECOND
    # The most time from the first grant of the work to its last. 0: unlimited.
    budget: Span = 3600 * SECOND


DEFAULT_RETRY = RetryPolicy()


_Policy = TypeVar("_Policy", RetryPolicy, "RetryOverrides")


@dataclass(slots=True, frozen=True)
class RetryOverrides:
    """The values that a node or its workflow sets itself. None: the value of the policy is used."""

    attempts: int | None = None
    initial_delay: Span | None = None
    factor: float | None = None
    max_delay: Span | None = None
    budget: Span | None = None

    def over(self, policy: _Policy) -> _Policy:
        """`policy` may be overrides too: a node's overrides are laid over its workflow's."""
        return replace(policy, **{name: value for name, value in asdict(self).items() if value is not None})


def backoff(policy: RetryPolicy, failures: int, random: float) -> Span:
    """The wait after the n-th failure."""
    try:
        ceiling = policy.initial_delay * policy.factor ** (failures - 1)
    except OverflowError:
        # A float cannot hold 10.0 ** 400. The result would be far above the cap.
        ceiling = policy.max_delay
    return int(random * min(policy.max_delay, ceiling))


def hand_back_delay(hand_backs: int) -> Span:
    """How long the runner of the n-th hand-back is not granted the work."""
    return min(HAND_BACK_DELAY_MAX, HAND_BACK_DELAY << (hand_backs - 1))


def hand_back_error(runner: str) -> Error:
    """The error of a run that was handed back once too often."""
    message = f"runners handed it back {HAND_BACKS_MAX} times, and now {runner} did; look for the reason in their logs"
    return Error(ErrorClass.TRANSIENT, "HANDED_BACK", message)


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
        is_of_circuit = error_class is ErrorClass.CIRCUIT_OPEN
        return FailureReason.CIRCUIT_BREAKER if is_of_circuit else FailureReason.MAX_RETRIES
    return retry_time


def death_error(runner: str, reason: FailureReason | None, *, is_rendering: bool) -> Error:
    """The error of a run whose runner died."""
    rendered = ", which rendered its templates for another runner" if is_rendering else ""
    if reason is FailureReason.POISON:
        message = f"{DEATHS_MAX} runners went away with it, the last was {runner}{rendered}"
        return Error(ErrorClass.PERMANENT, "POISON", message)
    return Error(ErrorClass.TRANSIENT, "RUNNER_LOST", f"the runner {runner} went away with it{rendered}")
