"""Small wrongs, one for each class of mistake that would break a promise, each with the test that must notice it.

A mutant is a passage of one file and what stands there instead. The passage must occur once, so a change of the code
that moves it away is noticed at once, and its mutant is written anew.
"""

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    name: str
    path: str
    passage: str
    instead: str
    killed_by: str


_CORE: Final = "services/coordinator/core"
_CORE_TESTS: Final = "tests/unit/coordinator_core"
_QUEUE: Final = "services/dispatcher/store"
_QUEUE_TESTS: Final = "tests/integration/dispatcher"
_FILTERS: Final = "tests/integration/coordinator/test_filters.py"
_TAKING_OVER: Final = "tests/integration/coordinator/test_taking_over.py"

MUTANTS: Final = [
    # Fences.
    Mutant(
        "epoch_dropped_from_the_append",
        "services/coordinator/store/append.py",
        "e.epoch = g.fence_epoch AND e.last_seq = g.fence_seq",
        "e.last_seq = g.fence_seq",
        f"{_TAKING_OVER}::test_a_raised_fence_alone_stops_the_holder_before",
    ),
    Mutant(
        "ended_instance_renewed_by_a_beat",
        "services/chassis/session/postgres.py",
        "WHERE instance_id = ANY(%s::text[]) AND state = 'LIVE'\n  ORDER BY",
        "WHERE instance_id = ANY(%s::text[])\n  ORDER BY",
        "tests/contract/session/test_session_store.py::test_ended_instance_never_comes_back",
    ),
    Mutant(
        "epoch_dropped_from_the_beats_lease",
        "services/chassis/lease/server.py",
        "return self._held.get(lease_id) == epoch",
        "return lease_id in self._held",
        "tests/unit/chassis_lease/test_server_frames.py::test_beats_keep_the_set_of_held_leases",
    ),
    Mutant(
        "epoch_dropped_from_the_hand_back",
        f"{_QUEUE}/leases.py",
        "WHERE q.epoch = t.epoch AND q.state + 0 IN (2, 3) ORDER BY",
        "WHERE q.state + 0 IN (2, 3) ORDER BY",
        f"{_QUEUE_TESTS}/test_returns.py::test_grants_handed_back_wait_again_but_never_anothers",
    ),
    Mutant(
        "epoch_dropped_from_the_finish",
        f"{_QUEUE}/admission_statements.py",
        "  DELETE FROM dispatcher.queue q USING told t\n"
        "  WHERE q.execution_id = t.execution_id AND q.epoch = t.epoch AND",
        "  DELETE FROM dispatcher.queue q USING told t\n  WHERE q.execution_id = t.execution_id AND",
        f"{_QUEUE_TESTS}/test_admission_store.py::test_finish_is_fenced_by_its_epoch",
    ),
    Mutant(
        "epoch_dropped_from_the_report",
        f"{_CORE}/handlers/reporting.py",
        "if run is not None and run.epoch == report.epoch and",
        "if run is not None and",
        f"{_CORE_TESTS}/test_runs.py::test_a_report_under_another_epoch_is_late",
    ),
    Mutant(
        "report_counted_for_another_instance",
        f"{_CORE}/handlers/reporting.py",
        'run.epoch == report.epoch and report.instance_id in ("", run.instance_id):',
        "run.epoch == report.epoch:",
        f"{_CORE_TESTS}/test_runs.py::test_a_report_counts_for_the_instance_that_was_granted_the_run",
    ),
    Mutant(
        "same_epoch_at_the_next_grant",
        f"{_QUEUE}/admission_statements.py",
        "SET state = 2, epoch = nextval('dispatcher.epochs'), holder = ($4",
        "SET state = 2, epoch = greatest(q.epoch, 1), holder = ($4",
        f"{_QUEUE_TESTS}/test_returns.py::test_every_grant_has_a_higher_epoch",
    ),
    Mutant(
        "same_epoch_after_the_end_of_its_holder",
        f"{_QUEUE}/leases.py",
        "granted_time = NULL, epoch = nextval('dispatcher.epochs')",
        "granted_time = NULL",
        f"{_QUEUE_TESTS}/test_returns.py::test_leases_of_an_ended_instance_wait_again_under_a_higher_epoch",
    ),
    # Admission.
    Mutant(
        "slots_counted_before_the_lock",
        f"{_QUEUE}/admission_statements.py",
        "ORDER BY workspace FOR NO KEY UPDATE",
        "ORDER BY workspace",
        f"{_QUEUE_TESTS}/test_slots.py::test_second_claim_counts_what_the_first_has_committed",
    ),
    Mutant(
        "one_workspace_served_to_its_end_before_the_next",
        f"{_QUEUE}/admission_statements.py",
        "ORDER BY c.nth, c.tenant LIMIT",
        "ORDER BY c.tenant, c.nth LIMIT",
        f"{_QUEUE_TESTS}/test_admission_store.py::test_claim_serves_workspaces_round_robin",
    ),
    Mutant(
        "request_key_of_all_workspaces",
        f"{_QUEUE}/admission_statements.py",
        "r.workspace = l.workspace AND r.request_id = i.request_id",
        "r.request_id = i.request_id",
        f"{_QUEUE_TESTS}/test_admission_store.py::test_same_request_id_of_another_workspace_is_another_request",
    ),
    Mutant(
        "no_poll_behind_a_wake_up",
        "services/dispatcher/app/rounds.py",
        "steps += [self.poll, self.end_unheld]",
        "steps += [self.end_unheld]",
        "tests/unit/dispatcher/test_loops.py::test_round_looks_for_work_leases_grants_and_messages",
    ),
    Mutant(
        "attempt_charged_for_a_release_without_failure",
        "services/dispatcher/core/releases.py",
        "return Fate(State.PENDING, attempts_before)",
        "return Fate(State.PENDING, attempts_before + 1)",
        "tests/unit/dispatcher/test_admission_rules.py::test_release_without_failure_charges_nothing",
    ),
    # Executions and runs.
    Mutant(
        "attempt_charged_for_a_run_handed_back",
        f"{_CORE}/fold.py",
        "    if event.may_have_begun:\n",
        "    run.work.failures += 1\n    if event.may_have_begun:\n",
        f"{_CORE_TESTS}/test_runs.py::test_a_run_handed_back_costs_nothing",
    ),
    Mutant(
        "run_leased_twice",
        f"{_CORE}/handlers/leasing.py",
        "if grant.work not in execution.ready:",
        "if False:",
        f"{_CORE_TESTS}/test_runs.py::test_a_work_is_not_leased_twice",
    ),
    Mutant(
        "word_of_the_runner_on_its_module_not_heard",
        f"{_CORE}/handlers/leasing.py",
        "node.is_idempotent or grant.is_idempotent",
        "node.is_idempotent",
        f"{_CORE_TESTS}/test_runs.py::test_work_may_be_done_twice_when_its_node_says_so_or_its_runner_of_its_module",
    ),
    Mutant(
        "live_runs_granted_again_at_a_take_over",
        f"{_CORE}/handlers/starting.py",
        "if run.instance_id not in command.live:",
        "if run:",
        f"{_CORE_TESTS}/test_runs.py::test_live_runs_are_adopted_and_none_is_granted_again",
    ),
    Mutant(
        "cancelled_after_its_success",
        f"{_CORE}/handlers/stopping.py",
        "if execution.is_final and execution.state is not ExecutionState.CANCELLED:",
        "if False:",
        f"{_CORE_TESTS}/test_transitions.py::test_every_command_in_every_situation",
    ),
    # Outages.
    Mutant(
        "unknown_commit_taken_for_a_failure",
        "services/coordinator/app/commit_loop.py",
        "if fence is None or self._is_ours(pending, fence):",
        "if fence is None:",
        f"{_TAKING_OVER}::test_an_append_whose_answer_was_lost_counts_once",
    ),
    Mutant(
        "instances_ended_by_an_outage",
        "services/chassis/session/reaper.py",
        "if self._guard.may_sweep(asked_at):",
        "if self._guard:",
        "tests/unit/chassis_lease/test_reaper.py::test_outage_ends_nobody",
    ),
    # Tenants.
    Mutant(
        "workspace_of_the_caller_not_compared",
        "services/api/app/executions.py",
        "if record is None or record.workspace != workspace:",
        "if record is None:",
        "tests/unit/api/test_execution_lists.py::test_foreign_unknown_and_malformed_ids_answer_alike",
    ),
    Mutant(
        "message_delivered_whatever_the_workspace",
        f"{_QUEUE}/mailbox.py",
        "WHERE (t.workspace = '' OR t.workspace = q.workspace) AND",
        "WHERE",
        f"{_QUEUE_TESTS}/test_service.py::test_foreign_and_unknown_executions_are_not_found",
    ),
    # Filters.
    Mutant(
        "absent_value_lost_under_a_negation",
        "services/coordinator/store/conditions.py",
        "return _holds(condition.negated).is_not(true())",
        "return ~_holds(condition.negated)",
        f"{_FILTERS}::test_what_is_absent_fits_nothing_but_what_says_no",
    ),
    Mutant(
        "whole_filter_sent_as_one_comparison",
        "services/api/peers/conditions.py",
        "return reads_pb2.Condition(negated=_condition(inner))",
        "return reads_pb2.Condition(operator=reads_pb2.Condition.EQUAL, negated=_condition(inner))",
        "tests/unit/api/test_list_filters.py::test_what_an_earlier_coordinator_does_not_know_has_no_operator",
    ),
]
