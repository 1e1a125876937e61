"""Work is tried again at the right time, or never."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.core.retry import DEFAULT_RETRY, RetryOverrides, RetryPolicy, backoff, judge_failure
from services.coordinator.core.values import SECOND, Error, ErrorClass, FailureReason, fingerprint

NOW = 1_000 * SECOND


def judge(policy=DEFAULT_RETRY, error_class=ErrorClass.TRANSIENT, failures=1, random=1.0, retry_after=0, first=NOW):
    return judge_failure(
        policy, error_class, failures, first_time=first, now=NOW, retry_after=retry_after, random=random
    )


def test_backoff_doubles_up_to_its_cap():
    waits = [backoff(DEFAULT_RETRY, failures, 1.0) // SECOND for failures in range(1, 12)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(1, 10))
def test_jitter_is_full_and_bounded(failures, random, factor):
    assert 0 <= backoff(RetryPolicy(factor=factor), failures, random) <= DEFAULT_RETRY.max_delay


def test_three_attempts_by_default():
    assert judge(failures=1) == NOW + SECOND
    assert judge(failures=2) == NOW + 2 * SECOND
    assert judge(failures=3) is FailureReason.MAX_RETRIES


def test_one_attempt_means_never_again():
    assert judge(RetryPolicy(attempts=1)) is FailureReason.MAX_RETRIES


def test_permanent_errors_are_never_retried_and_timeouts_are():
    assert judge(error_class=ErrorClass.PERMANENT) is FailureReason.PERMANENT_ERROR
    assert judge(error_class=ErrorClass.TIMEOUT) == NOW + SECOND


def test_retry_after_is_honoured_beyond_the_backoff():
    assert judge(retry_after=90 * SECOND) == NOW + 90 * SECOND
    assert judge(retry_after=SECOND // 2) == NOW + SECOND


def test_budget_ends_the_attempts():
    policy = RetryPolicy(attempts=100, budget=10 * SECOND)
    assert judge(policy, first=NOW - 9 * SECOND) == NOW + SECOND
    assert judge(policy, first=NOW - 10 * SECOND) is FailureReason.MAX_RETRIES
    assert judge(policy, retry_after=11 * SECOND) is FailureReason.MAX_RETRIES
    assert judge(RetryPolicy(budget=0), first=1) == NOW + SECOND
    forever = judge(RetryPolicy(budget=0), retry_after=10**18)
    assert forever == NOW + 365 * 86_400 * SECOND, "a stored time has a range"


def test_an_open_circuit_before_any_failure_waits_like_the_first_failure():
    assert judge(RetryPolicy(attempts=1), ErrorClass.CIRCUIT_OPEN, failures=0) == NOW + SECOND


def test_node_overrides_workflow_overrides_default():
    policy = RetryOverrides(attempts=5, budget=0).over(RetryPolicy(attempts=2, factor=3.0))
    assert (policy.attempts, policy.factor, policy.budget) == (5, 3.0, 0)
    everything = RetryOverrides(1, 2, 3.0, 4, 5).over(DEFAULT_RETRY)
    assert everything == RetryPolicy(1, 2, 3.0, 4, 5)


@pytest.mark.parametrize(("one", "other"), [("id 17 of 0x1F", "id 4711 of 0xab")])
def test_fingerprint_ignores_numbers_and_tells_errors_apart(one, other):
    def of(module, kind, message):
        return fingerprint(module, Error(ErrorClass.TRANSIENT, kind, message))

    assert of("m@1", "T", one) == of("m@1", "T", other)
    assert len({of("m@1", "T", one), of("m@2", "T", one), of("m@1", "U", one), of("m@1", "T", "else")}) == 4
