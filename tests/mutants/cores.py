"""Mutants of the pure cores: each promise of a rule, and the test of that rule that must notice."""

from typing import Final

from tests.mutants.changes import answered, never_refused, not_compared, sql_replaced, taken_as
from tests.mutants.mutant import Mutant

_API: Final = "services/api/core"
_COORDINATOR: Final = "services/coordinator/core"
_COORDINATOR_APP: Final = "services/coordinator/app"
_DEFINITION: Final = "client/windlass/definition"
_DISPATCHER: Final = "services/dispatcher"
_RUNNER: Final = "services/runner/core"

_RETRIES: Final = [
    Mutant(
        "permanent_error_tried_again",
        *(_COORDINATOR, "judge_failure", taken_as("error_class", "ErrorClass.TRANSIENT")),
        "test_permanent_errors_are_never_retried_and_timeouts_are",
    ),
    Mutant(
        "wait_that_a_target_asked_for_not_kept",
        *(_COORDINATOR, "judge_failure", taken_as("retry_after", "0")),
        "test_retry_after_is_honoured_beyond_the_backoff",
    ),
    Mutant(
        "retry_budget_without_an_end",
        *(_COORDINATOR, "judge_failure", taken_as("policy.budget", "0")),
        "test_budget_ends_the_attempts",
    ),
    Mutant(
        "backoff_above_its_cap",
        *(_COORDINATOR, "backoff", taken_as("policy.max_delay", "10**18")),
        "test_backoff_doubles_up_to_its_cap",
    ),
    Mutant(
        "deaths_not_counted",
        *(_COORDINATOR, "run_lost", not_compared("dead_instances")),
        "test_three_deaths_set_the_work_apart",
    ),
    Mutant(
        "death_spared_again_and_again",
        *(_COORDINATOR, "lose", taken_as("work.was_spared", "False")),
        "test_work_that_ends_its_runners_before_it_is_known_to_have_begun_is_spared_once",
    ),
    Mutant(
        "work_handed_back_without_end",
        *(_COORDINATOR, "release", taken_as("HAND_BACKS_MAX", "10**9")),
        "test_work_that_is_handed_back_without_end_fails",
    ),
    Mutant(
        "late_report_recorded_each_time",
        *(_COORDINATOR, "live_run", taken_as("run.is_late_noted", "False")),
        "test_a_late_report_is_refused_after_regrant_and_recorded_once",
    ),
    Mutant(
        "timer_fired_early",
        *(_COORDINATOR, "tick", taken_as("turn.now", "10**18")),
        "test_a_deadline_passes_unnoticed_once_it_ends",
    ),
]

_GRAPHS: Final = [
    Mutant(
        "join_of_all_edges_begun_by_one",
        *(_COORDINATOR, "join_verdict", taken_as("unresolved", "0")),
        "test_join_waits_starts_skips_or_blocks_by_the_edges_that_resolved",
    ),
    Mutant(
        "work_under_way_done_again_beside_itself",
        *(_COORDINATOR, "_unfit", never_refused("NODE_NOT_ENDED")),
        "test_a_backoff_is_not_at_rest",
    ),
    Mutant(
        "reopened_execution_with_what_was_left_of_its_time",
        *(_COORDINATOR, "_deadline", taken_as("execution.is_final", "False")),
        "test_it_gets_the_whole_time_again",
    ),
    Mutant(
        "nodes_of_a_cancelled_execution_left_undone_by_a_retry",
        *(_COORDINATOR, "with_what_was_left", taken_as("has_ended_early", "False")),
        "test_a_retry_of_one_node_of_a_cancelled_execution_also_does_what_was_left",
    ),
    Mutant(
        "undone_work_taken_for_done",
        *(_COORDINATOR, "_is_unfinished", taken_as("was_undone", "False")),
        "test_a_retry_does_undone_nodes_again_and_a_second_failure_undoes_them_again",
    ),
    Mutant(
        "compensations_in_the_order_of_the_work",
        *(_COORDINATOR, "begin_compensation", answered("reversed", "{arguments}")),
        "test_finished_nodes_are_undone_one_after_the_other_the_last_one_first",
    ),
    Mutant(
        "ended_without_undoing",
        *(_COORDINATOR, "_end_badly", taken_as("turn.execution.compensable", "()")),
        "test_a_cancel_undoes_what_was_done_when_all_runners_have_answered",
    ),
    Mutant(
        "conflict_of_two_branches_not_told",
        *(_COORDINATOR, "_merged", taken_as("conflict", "None")),
        "test_two_branches_that_set_a_key_to_different_values_are_a_fault_where_they_meet",
    ),
    Mutant(
        "later_value_of_a_key_not_preferred",
        *(_COORDINATOR, "_newest", taken_as("overridden", "0")),
        "test_a_later_value_wins_over_a_path_around_it",
    ),
]

_PEOPLE: Final = [
    Mutant(
        "work_granted_while_paused",
        *(_COORDINATOR, "assign", never_refused("EXECUTION_PAUSED")),
        "test_a_grant_that_was_prepared_before_the_pause_is_refused",
    ),
    Mutant(
        "control_node_begun_while_paused",
        *(_COORDINATOR, "advance", taken_as("execution.paused_by", "None")),
        "test_what_runs_may_finish_and_what_follows_waits_for_the_resume",
    ),
    Mutant(
        "repeated_command_carried_out_again",
        *(_COORDINATOR, "answered_once", answered("answer_to", "None")),
        "test_a_repeated_command_gets_its_first_answer",
    ),
    Mutant(
        "answers_remembered_without_end",
        *(_COORDINATOR, "remember", taken_as("ANSWERS_MAX", "10**9")),
        "test_the_newest_answers_of_each_kind_are_remembered",
    ),
    Mutant(
        "late_copy_carried_out_after_a_reopening",
        *(_COORDINATOR, "reopened_since", taken_as("execution.end_seq", "0")),
        "test_a_late_copy_of_a_cancel_that_came_after_the_end_changes_nothing_once_the_execution_was_reopened",
    ),
    Mutant(
        "cancel_of_an_ending_execution_not_put_on_record",
        *(f"{_COORDINATOR}/handlers", "cancel", answered("emit", "None")),
        "test_a_late_copy_of_a_cancel_that_came_while_it_was_ending_changes_nothing_either",
    ),
    Mutant(
        "child_that_a_person_cancelled_started_again",
        *(_COORDINATOR, "_error_of", taken_as("command.state", "ExecutionState.FAILED")),
        "test_a_child_that_was_cancelled_is_not_started_again",
    ),
    Mutant(
        "child_left_alone_by_a_parent_that_ends",
        *(_COORDINATOR, "Turn.cancel_run", taken_as("wait.child", "None")),
        "test_a_parent_that_ends_cancels_its_child_before_it_reports_its_end",
    ),
    Mutant(
        "abandoned_child_cancelled",
        *(_COORDINATOR, "Turn.cancel_run", taken_as("wait.child.is_cancelled_with_parent", "True")),
        "test_a_child_that_is_abandoned_goes_on",
    ),
    Mutant(
        "runner_that_was_lost_later_taken_for_dead_at_the_take_over",
        *(_COORDINATOR, "_lost_with_take_over", taken_as("still_live", "0")),
        "test_a_runner_of_which_only_some_runs_are_lost_right_after_a_take_over_was_not_dead_before",
    ),
    Mutant(
        "runs_of_all_runners_lost_with_one",
        *(_COORDINATOR, "_lose", taken_as("own", "{event.run for event in append if isinstance(event, ev.RunLost)}")),
        "test_two_runners_that_are_lost_in_one_append_are_lost_by_two_commands",
    ),
]

_VALUES: Final = [
    Mutant(
        "inputs_of_any_size_granted",
        *(_COORDINATOR, "_excess_bytes", taken_as("INPUTS_BYTES_MAX", "10**12")),
        "test_inputs_that_no_runner_can_be_handed_fail_the_node_for_good",
    ),
    Mutant(
        "output_of_any_size_journalled",
        *(_COORDINATOR, "fault_of", taken_as("INLINE_BYTES_MAX", "10**9")),
        "test_what_is_too_large_is_not_even_parsed",
    ),
    Mutant(
        "output_of_any_depth_journalled",
        *(_COORDINATOR, "json_fault", taken_as("DEPTH_MAX", "10**9")),
        "test_an_output_that_nobody_can_read_fails_its_run_for_good",
    ),
    Mutant(
        "status_that_asks_for_another_try_taken_for_final",
        *(_RUNNER, "of_status", taken_as("_RETRIED_STATUSES", "()")),
        "test_class_of_an_http_failure_follows_from_its_status",
    ),
    Mutant(
        "mistake_of_a_module_tried_again",
        *(_RUNNER, "of_exception", taken_as("_PERMANENT", "()")),
        "test_class_of_a_failure_follows_from_what_was_raised",
    ),
    Mutant(
        "wait_of_any_length_asked_for_by_a_server",
        *(_RUNNER, "seconds_asked", taken_as("RETRY_AFTER_SECONDS_MAX", "10.0**12")),
        "test_wait_is_understood_and_bounded",
    ),
    Mutant(
        "chain_of_filters_that_grow_taken_for_plain",
        *(_RUNNER, "weight_of_expression", answered("count", "0")),
        "test_what_can_grow_or_is_not_known_is_not_plain",
    ),
    Mutant(
        "leases_asked_for_without_a_bound",
        *(_RUNNER, "Window.capacity", taken_as("AHEAD_MAX", "10**9")),
        "test_the_window_is_bounded",
    ),
    Mutant(
        "schema_of_alternatives_taken_for_plain",
        *(_API, "_is_plain_keyword", not_compared("_PLAIN")),
        "test_schema_that_may_do_more_is_not_plain",
    ),
    Mutant(
        "redrive_that_fails_goes_on",
        *(_API, "is_failing", taken_as("_FAILED_SHARE_MAX", "1.0")),
        "test_more_than_a_tenth_is_too_much",
    ),
    Mutant(
        "redrive_of_all_after_the_first",
        *(_API, "next_piece", taken_as("_FEW", "1.0")),
        "test_first_one_then_one_in_twenty_then_the_rest_in_pieces",
    ),
    Mutant(
        "what_was_done_with_another_input_taken_over",
        *(_API, "taken_over_seq", taken_as("has_new_input", "False")),
        "test_what_is_taken_over_follows_from_what_was_asked",
    ),
]

_ADMISSION: Final = [
    Mutant(
        "execution_that_goes_on_kept_without_a_slot",
        *(_COORDINATOR_APP, "AfterCommit._leave", answered("lacks_slot", "False")),
        "test_an_execution_that_was_to_be_ended_and_goes_on_is_queued_for_a_slot",
    ),
    Mutant(
        "work_granted_without_a_slot",
        *(_COORDINATOR_APP, "CommitLoop._decide", taken_as("owned.may_use_runners", "True")),
        "test_an_execution_that_was_to_be_ended_and_goes_on_is_queued_for_a_slot",
    ),
    Mutant(
        "parked_execution_granted_again_without_a_slot",
        *(_DISPATCHER, "PARK", sql_replaced("ends_only = false, ", "")),
        "test_an_execution_that_goes_on_although_it_was_to_be_ended_takes_a_slot_at_its_next_grant",
    ),
    Mutant(
        "new_starts_take_all_room_while_others_wait",
        *(_DISPATCHER, "compose", taken_as("queues.has_ready", "False")),
        "test_while_others_wait_new_starts_take_at_most_half_of_the_credit",
    ),
    Mutant(
        "executions_to_be_ended_wait_for_the_others",
        *(_DISPATCHER, "compose", taken_as("is_ending_ready", "False")),
        "test_executions_to_be_ended_are_served_first",
    ),
    Mutant(
        "rows_locked_in_the_order_of_their_reports",
        *(_DISPATCHER, "compose", answered("sorted", "list(reports)")),
        "test_reports_lock_rows_in_the_order_of_their_ids",
    ),
    Mutant(
        "full_workspace_looked_at_in_every_claim",
        *(_DISPATCHER, "WorkspaceQueues._line_up", taken_as("queue.is_full", "False")),
        "test_full_queue_leaves_the_line_until_a_slot_may_be_free",
    ),
    Mutant(
        "report_under_an_old_epoch_taken_for_a_repeat",
        *(_DISPATCHER, "late_reason", not_compared("epoch")),
        "test_report_without_effect_is_explained",
    ),
    Mutant(
        "lease_of_another_holder_accepted",
        *(_DISPATCHER, "lease_refusal", not_compared("holder")),
        "test_held_lease_is_accepted_only_from_its_holder",
    ),
    Mutant(
        "failing_execution_dispatched_without_end",
        *(_DISPATCHER, "fate_of", taken_as("DISPATCH_ATTEMPTS_MAX", "10**9")),
        "test_failed_dispatch_waits_longer_each_time_and_dies_at_the_third",
    ),
]

_RISKS: Final = [
    Mutant(
        "repeated_request_taken_for_one_that_is_sent_once",
        *(_DEFINITION, "_attempts", taken_as("_ATTEMPTS", "1")),
        "test_a_request_that_may_do_its_work_twice_is_a_warning",
    ),
    Mutant(
        "policy_of_the_workflow_not_looked_at",
        *(_DEFINITION, "_attempts", taken_as("around", "around[-1:]")),
        "test_the_policy_of_the_workflow_counts_for_nodes_that_have_none",
    ),
    Mutant(
        "warned_of_a_request_with_a_key_of_its_own",
        *(_DEFINITION, "_repeated_request", answered("any", "False")),
        "test_a_request_that_is_sent_once_or_may_be_repeated_is_no_risk",
    ),
    Mutant(
        "requests_of_loops_not_judged",
        *(_DEFINITION, "risks_of", answered("body_of", "None")),
        "test_requests_of_loops_and_compensations_are_judged_too",
    ),
    Mutant(
        "requests_of_compensations_not_judged",
        *(_DEFINITION, "risks_of", answered("compensation_of", "None")),
        "test_requests_of_loops_and_compensations_are_judged_too",
    ),
    Mutant(
        "warned_of_a_wait_that_the_workflow_ends",
        *(_DEFINITION, "_endless_wait", taken_as("document", "{}")),
        "test_a_wait_that_nothing_ends_is_a_warning",
    ),
    Mutant(
        "wait_that_nothing_ends_not_told",
        *(_DEFINITION, "_endless_wait", taken_as("_WAITS", "()")),
        "test_a_wait_that_nothing_ends_is_a_warning",
    ),
]

CORES: Final = [*_RETRIES, *_GRAPHS, *_PEOPLE, *_VALUES, *_ADMISSION, *_RISKS]
