"""The questions asked of a history find its faults, and count the cases that they saw."""

from typing import Any

import pytest

from tests.chaos.history import Execution, History, Run, cases, faults_of

EXECUTIONS = ("e1", "e2")
KEYS = {("e1", "flaky"): "k1", ("e1", "after"): "k2", ("e2", "flaky"): "k3", ("e2", "after"): "k4"}


def call(execution: str, node: str, number: int, attempt: int, phase: str, at: int) -> dict[str, Any]:
    return {
        "phase": phase,
        "effect_key": KEYS[execution, node],
        "execution": execution,
        "node": node,
        "run": f"{execution}.{number}",
        "attempt": attempt,
        "monotonic_ns": at,
    }


def history() -> History:
    """Two executions of `chaos-retry`, each with the failed attempt that it asks for."""
    made = History()
    for execution in EXECUTIONS:
        made.executions[execution] = Execution(id=execution, workflow="chaos-retry", state=Execution.SUCCESS)
        made.runs[execution] = []
        for number, (node, attempt) in enumerate((("flaky", 1), ("flaky", 2), ("after", 1)), 1):
            is_failed = (node, attempt) == ("flaky", 1)
            made.runs[execution].append(
                Run(
                    id=f"{execution}.{number}",
                    node=node,
                    attempt=attempt,
                    generation=1,
                    effect_key=KEYS[execution, node],
                    state=Run.FAILED if is_failed else Run.SUCCESS,
                )
            )
            end = "fail" if is_failed else "end"
            made.calls += [
                call(execution, node, number, attempt, "begin", 10 * number),
                call(execution, node, number, attempt, end, 10 * number + 1),
            ]
    return made


def test_history_without_a_fault_has_none_and_tells_what_was_looked_at() -> None:
    assert faults_of(history()) == []
    assert cases(history()) == {
        "executions": 2, "runs": 6, "calls": 6, "repeated": 2, "works": 4, "works called again": 2,
    }  # fmt: skip


def falsified(run: str, key: str, *, is_shown: bool) -> list[str]:
    """The faults of a history in which this run was called with this key. Its row may show that key too."""
    made = history()
    for each in made.calls:
        if each["run"] == run:
            each["effect_key"] = key
    if is_shown:
        next(each for runs in made.runs.values() for each in runs if each.id == run).effect_key = key
    return faults_of(made)


@pytest.mark.parametrize(
    ("run", "key", "is_shown", "fault"),
    [
        ("e1.2", "k9", True, "had keys ['k1', 'k9']"),
        ("e1.2", "k9", False, "e1.2 was called with key 'k9'"),
        ("e1.3", "k1", True, "key k1 is shared by"),
        ("e2.3", "k2", True, "key k2 is shared by"),
        ("e1.3", "", True, "e1.3 was called with key ''"),
    ],
)
def test_key_that_is_not_the_works_own_is_found(run: str, key: str, is_shown: bool, fault: str) -> None:
    assert any(fault in found for found in falsified(run, key, is_shown=is_shown))


def test_key_of_another_generation_of_the_same_node_is_found() -> None:
    made = history()
    made.runs["e1"][1].generation = 2
    assert any("key k1 is shared by" in fault for fault in faults_of(made))


def test_ledger_in_which_no_work_was_called_again_shows_no_case() -> None:
    made = history()
    made.calls = [each for each in made.calls if each["attempt"] == 1]
    assert cases(made)["works called again"] == 0
