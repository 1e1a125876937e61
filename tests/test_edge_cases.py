"""Each case in which something goes wrong has a test that proves what happens then. This table says which."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
_START = "unit/api/test_start_orders.py::test_faulty_start_is_never_queued"
_DISPATCH = "integration/dispatcher/test_log_events.py"
_TAKING_OVER = "integration/coordinator/test_taking_over.py"
_FAULTS = "unit/definition/test_definition_faults.py"
_HTTP = "unit/runner/test_http_failures.py"
_BAD_INPUT = "e2e/test_bad_input.py"

CASES: dict[str, tuple[str, ...]] = {
    "a start names a workflow that is not there": (_START,),
    "a start names a workflow of another workspace": (
        _START,
        f"{_BAD_INPUT}::test_foreign_execution_answers_as_one_that_never_was",
    ),
    "the database is away at the start": (
        "chaos/test_postgres_faults.py::test_standing_still_for_two_terms_and_killed_twice_nothing_is_lost_and_no_lease_ends",
        "e2e/test_health.py::test_health_follows_the_database",
    ),
    "a dispatcher dies after its claim": (
        "chaos/test_crash_points.py::test_dying_at_each_named_point_nothing_is_lost_and_nothing_done_again",
    ),
    "a workspace is closed while something waits in its queue": (
        f"{_DISPATCH}::test_closed_workspace_takes_nothing_and_what_it_had_waiting_is_an_error",
    ),
    "a workflow is archived while something waits in its queue": (
        "e2e/test_repeated_starts.py::test_what_was_queued_before_its_workflow_was_archived_is_done",
    ),
    "the version of an execution is gone or damaged": (
        "unit/coordinator/test_journal_loader.py::test_a_version_that_is_not_there_is_refused_at_once_and_for_good",
        "unit/coordinator/test_journal_loader.py::test_a_definition_that_a_newer_coordinator_may_know_goes_back_after_a_rest",
    ),
    "an execution fails to start three times": (
        f"{_DISPATCH}::test_execution_that_failed_to_start_is_an_error_each_time_and_the_last_gives_it_up",
        "unit/dispatcher/test_admission_rules.py::test_failed_dispatch_waits_longer_each_time_and_dies_at_the_third",
    ),
    "no coordinator is there": (
        "integration/dispatcher/test_admission_loop.py::test_without_credit_new_starts_are_durable_and_wait",
    ),
    "the row of an execution cannot be written": (
        "integration/coordinator/test_broken_executions.py::test_execution_that_cannot_be_written_harms_none_of_the_same_flush",
    ),
    "an execution is known and its rows are gone": (
        f"{_TAKING_OVER}::test_an_execution_whose_rows_are_gone_holds_up_no_other",
        f"{_TAKING_OVER}::test_an_execution_that_had_begun_and_has_no_rows_never_begins_again",
    ),
    "a definition has a cycle": (f"{_FAULTS}::test_cycle_names_the_nodes_on_it",),
    "an edge leads to no node": (f"{_FAULTS}::test_fault_is_found_where_it_is",),
    "a definition has no nodes": (
        f"{_FAULTS}::test_empty_graph_is_good",
        "unit/coordinator_core/test_walk.py::test_empty_graph_succeeds_at_once",
    ),
    "nothing is ready and work remains": (
        "unit/coordinator_core/test_walk.py::test_nothing_ready_but_work_remains_is_a_broken_invariant",
    ),
    "a run that is not there is reported": ("unit/coordinator_core/test_runs.py::test_an_unknown_run_is_refused",),
    "a server answers with HTTP 4xx": (f"{_HTTP}::test_refusal_is_permanent_whatever_it_says_of_later",),
    "a server answers with HTTP 5xx": (f"{_HTTP}::test_trouble_is_transient_and_says_when_to_come_back",),
    "an input does not fit": (
        "unit/api/test_start_orders.py::test_input_that_does_not_fit_is_refused_by_the_newest_and_by_the_named_version",
    ),
    "a server refuses a node's credentials": (f"{_HTTP}::test_refusal_is_permanent_whatever_it_says_of_later",),
    "a node takes too long": (
        "unit/coordinator_core/test_runs.py::test_a_run_fails_when_its_runner_is_silent_beyond_the_node_timeout",
        "unit/runner/test_deadlines.py::test_module_is_told_the_earlier_of_its_nodes_timeout_and_its_executions_deadline",
    ),
    "an execution has ended elsewhere when its end is reported": (
        f"{_TAKING_OVER}::test_a_holder_that_was_replaced_can_never_write_again",
        "integration/dispatcher/test_admission_store.py::test_finish_is_fenced_by_its_epoch",
    ),
    "the queue has no row of an execution whose end is reported": (
        "integration/dispatcher/test_admission_store.py::test_late_reports_have_reasons_and_repeated_ones_have_none",
    ),
    "the database is away at the end": (
        f"{_TAKING_OVER}::test_an_absent_database_loses_nothing_and_redoes_nothing",
        "integration/dispatcher/test_admission_loop.py::test_report_that_cannot_be_stored_is_kept_unanswered_until_it_can",
    ),
    "another holds the lease": (
        "unit/coordinator_core/test_runs.py::test_a_report_counts_for_the_instance_that_was_granted_the_run",
        "unit/coordinator_core/test_runs.py::test_an_older_holder_is_refused",
    ),
    "a command names a run or a dead letter that is not there": (
        "unit/coordinator_core/test_dead_letters.py::test_a_run_that_is_no_dead_letter_cannot_be_resolved",
        f"{_BAD_INPUT}::test_case_has_its_code_and_reason",
    ),
    "a circuit is open": (
        "e2e/test_circuits.py::test_work_for_a_server_that_fails_waits_and_is_done_when_it_answers_again",
    ),
    "a start is sent twice": ("e2e/test_repeated_starts.py::test_repeat_after_a_change_gets_the_first_execution",),
    "a runner is killed in the middle of its work": (
        "chaos/test_kills.py::test_killed_at_random_instants_nothing_is_lost_and_nothing_done_again",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_the_test_that_is_named_here(case: str) -> None:
    for name in CASES[case]:
        path, _, function = name.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE), name
