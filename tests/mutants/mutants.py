"""Small faults, one for each kind of mistake that would break a promise, each with the test that must notice it.

A mutant changes the meaning of one name in one folder (changes.py), wherever the file and its lines are. When the name
has gone, test_mutants.py says so, and the mutant has to name the new one.
"""

from typing import Final

from tests.mutants.changes import (
    also,
    answered,
    never_refused,
    not_compared,
    only_known,
    sql_not_compared,
    sql_replaced,
    taken_as,
    without_element,
)
from tests.mutants.cores import CORES
from tests.mutants.doors import RED_TEAM
from tests.mutants.mutant import Mutant
from tests.mutants.simulated import SIMULATED

_API: Final = "services/api"
_CHASSIS: Final = "services/chassis"
_COORDINATOR: Final = "services/coordinator"
_DISPATCHER: Final = "services/dispatcher"
_RUNNER: Final = "services/runner"
_RENDERING: Final = "services/rendering"
_EQUAL_AND: Final = "{receiver}.Condition(operator={receiver}.Condition.EQUAL, {arguments})"
_EPOCH_STAYS: Final = sql_replaced(r"\bepoch = nextval\([^)]*\)", "epoch = greatest(q.epoch, 1)")

FENCES: Final = [
    Mutant(
        "epoch_dropped_from_the_append",
        *(f"{_COORDINATOR}/store", "_update_execution", sql_not_compared("e.epoch")),
        "test_a_raised_fence_alone_stops_the_holder_before",
    ),
    Mutant(
        "ended_instance_renewed_by_a_beat",
        *(_CHASSIS, "_RENEW", sql_not_compared("state")),
        "test_ended_instance_never_comes_back",
    ),
    Mutant(
        "epoch_dropped_from_the_beats_lease",
        *(_CHASSIS, "ServerSessionRules.holds", only_known("epoch")),
        "test_beats_keep_the_set_of_held_leases",
    ),
    Mutant(
        "epoch_dropped_from_the_hand_back",
        *(_DISPATCHER, "locked_leases", not_compared("epoch")),
        "test_grants_handed_back_wait_again_but_never_anothers",
    ),
    Mutant(
        "epoch_dropped_from_the_finish",
        *(_DISPATCHER, "FINISH", sql_not_compared("epoch")),
        "test_finish_is_fenced_by_its_epoch",
    ),
    Mutant(
        "epoch_dropped_from_the_report",
        *(_COORDINATOR, "live_run", not_compared("epoch")),
        "test_a_report_under_another_epoch_is_late",
    ),
    Mutant(
        "report_counted_for_another_instance",
        *(_COORDINATOR, "live_run", not_compared("instance_id")),
        "test_a_report_counts_for_the_instance_that_was_granted_the_run",
    ),
    Mutant(
        "same_epoch_at_the_next_grant", *(_DISPATCHER, "CLAIM", _EPOCH_STAYS), "test_every_grant_has_a_higher_epoch"
    ),
    Mutant(
        "same_epoch_after_the_end_of_its_holder",
        *(_DISPATCHER, "_END_HELD", answered("next_value", "queue.c.epoch")),
        "test_leases_of_an_ended_instance_wait_again_under_a_higher_epoch",
    ),
]

ADMISSION: Final = [
    Mutant(
        "slots_counted_before_the_lock",
        *(_DISPATCHER, "LOCK_WORKSPACES", sql_replaced("FOR NO KEY UPDATE", "")),
        "test_second_claim_counts_what_the_first_has_committed",
    ),
    Mutant(
        "one_workspace_served_to_its_end_before_the_next",
        *(_DISPATCHER, "CLAIM", sql_replaced(r"\b(c\.nth), (c\.\w+)", r"\2, \1")),
        "test_claim_serves_workspaces_round_robin",
    ),
    Mutant(
        "request_key_of_all_workspaces",
        *(_DISPATCHER, "ADMIT", sql_not_compared("r.workspace")),
        "test_same_request_id_of_another_workspace_is_another_request",
    ),
    Mutant(
        "no_poll_behind_a_wake_up",
        *(_DISPATCHER, "PollLoop.run_once", without_element("poll")),
        "test_round_looks_for_work_leases_grants_and_messages",
    ),
    Mutant(
        "attempt_charged_for_a_release_without_failure",
        *(_DISPATCHER, "fate_of", taken_as("attempts_before", "attempts_before + 1")),
        "test_release_without_failure_charges_nothing",
    ),
]

CIRCUITS: Final = [
    Mutant(
        "permits_without_a_limit",
        *(_COORDINATOR, "_with_permits", taken_as("policy.permits_max", "policy.permits_max + 1")),
        "test_so_many_permits_are_given_and_no_more",
    ),
    Mutant(
        "outcome_of_an_earlier_opening_counted",
        *(_COORDINATOR, "visited", not_compared("generation")),
        "test_a_late_outcome_of_an_earlier_opening_changes_nothing",
    ),
    Mutant(
        "circuit_visited_without_its_lock",
        *(f"{_COORDINATOR}/store", "_LOCK", sql_replaced("FOR UPDATE", "")),
        "test_of_all_that_ask_at_once_only_the_permitted_go_through[postgres]",
    ),
    Mutant(
        "attempt_charged_for_a_run_that_was_not_made",
        *(_COORDINATOR, "work_held_back", also("work.failures += 1")),
        "test_a_run_that_was_not_made_costs_no_attempt_and_its_work_waits",
    ),
    Mutant(
        "work_granted_behind_an_open_circuit",
        *(_COORDINATOR, "Circuits._hold_of", answered("is_open", "False")),
        "test_failures_open_the_circuit_and_others_hear_of_it_within_a_second",
    ),
]

EXECUTIONS_AND_RUNS: Final = [
    Mutant(
        "attempt_charged_for_a_run_handed_back",
        *(_COORDINATOR, "run_released", also("run.work.failures += 1")),
        "test_a_run_handed_back_costs_nothing",
    ),
    Mutant(
        "run_leased_twice", *(_COORDINATOR, "assign", never_refused("NOT_READY")), "test_a_work_is_not_leased_twice"
    ),
    Mutant(
        "word_of_the_runner_on_its_module_not_heard",
        *(_COORDINATOR, "_lease", taken_as("grant.is_idempotent", "False")),
        "test_work_may_be_done_twice_when_its_node_says_so_or_its_runner_of_its_module",
    ),
    Mutant(
        "live_runs_granted_again_at_a_take_over",
        *(_COORDINATOR, "adopt", taken_as("command.live", "()")),
        "test_live_runs_are_adopted_and_none_is_granted_again",
    ),
    Mutant(
        "stored_output_of_another_workspace_counted",
        *(_COORDINATOR, "_is_own", answered("is_blob_of", "True")),
        "test_success_with_an_output_that_is_not_there_is_a_failure",
    ),
    Mutant(
        "stored_output_of_another_month_counted",
        *(_COORDINATOR, "_is_own", answered("month_of", "None")),
        "test_success_with_an_output_that_is_not_there_is_a_failure",
    ),
    Mutant(
        "stored_output_of_another_size_counted",
        *(_COORDINATOR, "_ref_error", not_compared("size_bytes")),
        "test_success_with_an_output_that_is_not_there_is_a_failure",
    ),
    Mutant(
        "cancelled_after_its_success",
        *(f"{_COORDINATOR}/core/handlers", "cancel", never_refused("EXECUTION_FINAL")),
        "test_every_command_leads_in_every_situation_to_what_the_table_says",
    ),
]

LOOPS: Final = [
    Mutant(
        "a_loop_goes_on_after_a_failed_item",
        *(_COORDINATOR, "is_over", taken_as("has_failed", "False")),
        "test_the_first_item_that_fails_ends_the_loop",
    ),
    Mutant(
        "runners_of_stopped_items_work_on",
        *(_COORDINATOR, "_item_stops", taken_as("event.stopped", "()")),
        "test_a_runner_of_a_stopped_item_is_told_so",
    ),
    Mutant(
        "a_turn_does_not_wait_for_its_time",
        *(_COORDINATOR, "after_item", taken_as("loop.delay", "0")),
        "test_a_delay_between_turns_is_a_wait",
    ),
    Mutant(
        "large_outputs_of_loops_forgotten_at_a_take_over",
        *(_COORDINATOR, "resume_effects", taken_as("execution.unstored", "{}")),
        "test_a_large_output_is_stored_before_the_loop_ends",
    ),
    Mutant(
        "large_lists_of_loops_forgotten_at_a_take_over",
        *(_COORDINATOR, "unread_lists", taken_as("loop.items", "True")),
        "test_a_successor_reads_the_list_again",
    ),
]

SHARES: Final = [
    Mutant(
        "reserve_open_to_everybody",
        *(_COORDINATOR, "_Room.__init__", answered("reserved", "0")),
        "test_one_workspace_leaves_the_reserve_to_those_who_hold_nothing",
    ),
    Mutant(
        "work_granted_again_at_once_to_the_runner_that_handed_it_back",
        *(_COORDINATOR, "_Line._may_have", answered("is_barred", "False")),
        "test_work_is_not_granted_again_at_once_to_the_runner_that_handed_it_back",
    ),
    Mutant(
        "all_children_for_one_workspace",
        *(_RENDERING, "RenderingChildren._next", taken_as("self._served", "()")),
        "test_slow_templates_of_one_workspace_hold_up_no_other",
    ),
]

OUTAGES: Final = [
    Mutant(
        "unknown_commit_taken_for_a_failure",
        *(_COORDINATOR, "CommitLoop._write", answered("_is_ours", "False")),
        "test_an_append_whose_answer_was_lost_counts_once",
    ),
    Mutant(
        "instances_ended_by_an_outage",
        *(_CHASSIS, "SessionReaper.run_once", answered("may_sweep", "True")),
        "test_outage_ends_nobody",
    ),
    Mutant(
        "silence_of_the_output_store_taken_for_an_answer",
        *(_COORDINATOR, "_is_silent", answered("isinstance", "False")),
        "test_report_waits_while_the_store_is_away",
    ),
    Mutant(
        "directory_without_its_disk_taken_for_the_store",
        *(_CHASSIS, "DirectoryBlobs._found_size", answered("is_dir", "True")),
        "test_size_is_not_told_by_a_directory_that_is_not_the_store",
    ),
]

TENANTS: Final = [
    Mutant(
        "workspace_of_the_caller_not_compared",
        *(_API, "_own", not_compared("workspace")),
        "test_foreign_unknown_and_malformed_ids_answer_alike",
    ),
    Mutant(
        "message_delivered_whatever_the_workspace",
        *(_DISPATCHER, "_DELIVER", sql_not_compared("t.workspace")),
        "test_foreign_and_unknown_executions_are_not_found",
    ),
]

STRANGERS: Final = [
    Mutant(
        "socket_made_for_any_address",
        *(_RUNNER, "GuardedSockets.__call__", answered("permits", "True")),
        "test_a_name_that_resolves_to_another_address_the_next_time_gains_nothing",
    ),
    Mutant(
        "address_judged_as_it_is_written",
        *(_RUNNER, "Egress.permits", answered("_meant", "{arguments}")),
        "test_a_public_address_may_be_called",
    ),
    Mutant(
        "origins_not_told_apart",
        *(_RUNNER, "_Headers.__call__", answered("origin", "1")),
        "test_another_origin_gets_no_credentials_and_no_effect_key",
    ),
    Mutant(
        "words_of_a_server_shown_as_they_are",
        *(_RUNNER, "SentSecrets.withheld_from", answered("replace", "{receiver}")),
        "test_a_failure_tells_no_secret",
    ),
    Mutant(
        "size_of_a_stored_output_not_compared",
        *(_CHASSIS, "DirectoryBlobs._open", not_compared("size_bytes")),
        "test_an_output_that_is_not_as_large_as_was_said_is_not_read",
    ),
]

FILTERS: Final = [
    Mutant(
        "absent_value_lost_under_a_negation",
        *(_COORDINATOR, "Filtered.holds", answered("is_not", "~{receiver}", where="negated")),
        "test_row_without_a_value_fits_no_comparison_but_every_negated_one",
    ),
    Mutant(
        "whole_filter_sent_as_one_comparison",
        *(_API, "_Reader._term", answered("Condition", _EQUAL_AND, where="negated")),
        "test_form_has_no_operator",
    ),
]

REPLAYS: Final = [
    Mutant(
        "journals_replayed_without_places",
        *(_COORDINATOR, "Replays.__init__", taken_as("_AT_ONCE", "99")),
        "test_few_journals_are_replayed_at_once_and_the_others_wait",
    ),
    Mutant(
        "replays_of_all_workspaces_in_one_line",
        *(_COORDINATOR, "Replays.place", taken_as("workspace", "''")),
        "test_a_workspace_with_many_replays_keeps_no_other_from_a_place",
    ),
    Mutant(
        "exports_of_all_workspaces_in_one_line",
        *(_API, "CoordinatorReplays._place", answered("caller", "caller()._replace(workspace='')")),
        "test_a_workspace_whose_exports_come_slowly_keeps_no_other_from_a_replay",
    ),
    Mutant(
        "append_of_any_size_decided_again",
        *(_COORDINATOR, "Redecider.take", taken_as("_APPEND_MAX", "10**9")),
        "test_events_that_all_have_one_time_are_folded_with_a_rest_between_any_two",
    ),
    Mutant(
        "export_of_any_number_of_events_replayed",
        *(_COORDINATOR, "ExportParts._event", taken_as("EVENTS_MAX", "10**9")),
        "test_a_file_with_too_many_events_is_refused_however_small_they_are",
    ),
    Mutant(
        "texts_of_any_length_imported",
        *(_COORDINATOR, "_check_values", taken_as("TEXT_CHARACTERS_MAX", "10**9")),
        "test_what_may_not_be_brought_here_may_not_be_in_an_export",
    ),
    Mutant(
        "copies_written_on_the_connections_of_reads",
        *(_COORDINATOR, "PostgresImports.add", taken_as("self._writer", "self._database")),
        "test_reads_go_on_while_copies_are_written",
    ),
    Mutant(
        "output_stored_under_another_hash",
        *(_CHASSIS, "DirectoryBlobs.put_unnamed", taken_as("ref.sha256", "sha256")),
        "test_nothing_is_left_of_a_value_that_is_not_the_one_that_was_announced",
    ),
]

RETENTION: Final = [
    Mutant(
        "execution_without_rows_begun_a_second_time",
        *(_COORDINATOR, "JournalLoader._arrived", taken_as("owned.has_begun", "False")),
        "test_an_execution_that_had_begun_and_has_no_rows_never_begins_again",
    ),
    Mutant(
        "begun_forgotten_when_it_is_parked",
        *(_DISPATCHER, "PARK", sql_replaced(r"begun = true, ", "")),
        "test_an_execution_that_has_begun_is_granted_as_begun_for_ever",
    ),
    Mutant(
        "month_dropped_while_an_execution_goes_on",
        *(_COORDINATOR, "_LOOK", sql_replaced("end_time IS NULL OR ", "")),
        "test_a_month_is_dropped_when_all_its_executions_have_ended_long_ago",
    ),
]

TEMPLATES: Final = [
    Mutant(
        "expression_grammar_with_calls",
        *(_RENDERING, "_refuse_call", answered("call_in", "''")),
        "test_templates_call_nothing",
    ),
    Mutant(
        "name_of_a_method_looked_up_in_plain_data",
        *(_RENDERING, "_Data.of", answered("needs_guard", "False")),
        "test_data_have_no_methods",
    ),
    Mutant(
        "absent_value_joined_as_null",
        *(_RENDERING, "_AS_TEXT", taken_as("_OR_ABSENT", "''")),
        "test_what_a_template_may_not_do_is_a_permanent_failure",
    ),
]

WAITS: Final = [
    Mutant(
        "approval_decided_by_anybody",
        *(_COORDINATOR, "decide", never_refused("NOT_AN_ASSIGNEE")),
        "test_only_assignees_decide",
    ),
    Mutant(
        "four_eyes_of_one_key",
        *(_COORDINATOR, "decide", never_refused("ALREADY_DECIDED")),
        "test_four_eyes_are_those_of_two_keys",
    ),
    Mutant(
        "approval_decided_twice",
        *(_COORDINATOR, "decide", never_refused("ALREADY_RESOLVED")),
        "test_an_approval_is_decided_once",
    ),
    Mutant(
        "any_token_is_genuine",
        *(_CHASSIS, "NamedTokens.is_genuine", answered("compare_digest", "True")),
        "test_anything_else_is_not_genuine",
    ),
    Mutant(
        "signals_kept_without_end",
        *(_COORDINATOR, "_refusal_of_more", never_refused("SIGNALS_FULL")),
        "test_more_signals_than_are_kept_are_refused",
    ),
    Mutant(
        "wait_ended_by_the_token_of_another_run",
        *(_COORDINATOR, "_open_run", not_compared("number")),
        "test_other_waits_are_not_ended_by_a_completion",
    ),
]

BULK_JOBS: Final = [
    Mutant(
        "epoch_dropped_from_the_progress_of_a_job",
        *(_API, "_IS_HELD", not_compared("epoch")),
        "test_one_that_has_lost_the_job_changes_nothing",
    ),
    Mutant(
        "job_taken_from_its_holder",
        *(_API, "_FREE", answered("or_", "True")),
        "test_a_job_has_one_holder_until_its_lease_ends",
    ),
    Mutant(
        "job_of_an_unknown_action_taken",
        *(_API, "_FREE", not_compared("action")),
        "test_a_job_with_the_action_of_a_newer_version_is_left_to_that_version",
    ),
    Mutant(
        "running_jobs_without_a_limit",
        *(_API, "PostgresBulkJobs.add", never_refused("bulk_jobs_exceeded")),
        "test_a_workspace_has_few_running_jobs",
    ),
    Mutant(
        "commands_of_all_jobs_in_one_line",
        *(_API, "BulkWorker._work", answered("set_caller", "None")),
        "test_slow_commands_of_one_workspace_do_not_hold_up_the_job_of_another",
    ),
    Mutant(
        "execution_that_could_not_be_told_counted_at_the_first_try",
        *(_API, "reached", taken_as("is_last_try", "True")),
        "test_only_what_comes_before_the_first_that_is_tried_again_counts",
    ),
    Mutant(
        "commands_given_as_fast_as_can_be",
        *(_API, "next_turn", taken_as("previous", "None")),
        "test_turns_are_apart_and_unused_ones_are_not_saved",
    ),
    Mutant(
        "late_copy_of_a_cancel_carried_out_again",
        *(f"{_COORDINATOR}/core/handlers", "cancel", answered("answer_to", "None")),
        "test_a_late_copy_of_a_cancel_does_not_end_the_execution_again_after_it_was_reopened[the same holder]",
    ),
]

SNAPSHOTS: Final = [
    Mutant(
        "checksum_of_a_record_not_compared",
        *(f"{_COORDINATOR}/store", "_checked", not_compared("crc32")),
        "test_a_damaged_snapshot_is_not_read",
    ),
    Mutant(
        "record_that_is_not_whole_taken_for_a_snapshot",
        *(f"{_COORDINATOR}/store", "whole", taken_as("record.is_whole", "True")),
        "test_a_snapshot_in_several_records_has_the_whole_state[3-for_each]",
    ),
    Mutant(
        "changes_after_a_snapshot_not_stored_in_the_next",
        *(f"{_COORDINATOR}/store", "JournalSnapshotLog.note", answered("note", "None")),
        "test_a_snapshot_after_each_event_of_a_stored_journal_has_the_whole_state[for_each]",
    ),
    Mutant(
        "damaged_snapshots_kept",
        *(f"{_COORDINATOR}/store", "PostgresJournal.load", taken_as("drops_snapshots", "False")),
        "test_the_take_over_after_one_that_found_a_damaged_snapshot_reads_snapshots_again",
    ),
    Mutant(
        "snapshots_dropped_by_one_that_has_lost_the_execution",
        *(f"{_COORDINATOR}/store", "DROP_SNAPSHOTS", sql_not_compared("e.epoch")),
        "test_snapshots_are_dropped_only_by_the_holder_of_the_execution",
    ),
    Mutant(
        "past_state_read_from_a_later_snapshot",
        *(f"{_COORDINATOR}/store", "_SNAPSHOT", sql_replaced(r"AND last_seq <= %\(as_of\)s", "")),
        "test_the_state_at_each_event_is_read_from_the_snapshot_before_it[sound]",
    ),
]

FORKS: Final = [
    Mutant(
        "origin_of_another_workspace_read",
        *(_COORDINATOR, "ForkOrigins._origin", not_compared("workspace")),
        "test_an_origin_that_is_gone_or_belongs_to_others_is_not_read",
    ),
    Mutant(
        "origin_read_beyond_the_named_event",
        *(_COORDINATOR, "JournalWalks._steps", taken_as("as_of_seq", "2**62")),
        "test_only_what_was_done_at_the_named_event_is_taken_over",
    ),
    Mutant(
        "stored_output_left_in_the_month_of_the_origin",
        *(_COORDINATOR, "ForkOrigins._stored", not_compared("month")),
        "test_a_stored_output_is_copied_to_the_month_of_the_fork",
    ),
    Mutant(
        "places_for_forks_without_a_share",
        *(_COORDINATOR, "ForkOrigins.prepare", taken_as("owned.start.origin.workspace", "''")),
        "test_forks_of_one_workspace_do_not_hold_up_a_fork_of_another",
    ),
    Mutant(
        "failed_work_taken_over",
        *(_COORDINATOR, "_is_done", taken_as("work.state", "WorkState.SUCCEEDED")),
        "test_failures_that_are_tried_again_are_not_taken_over",
    ),
    Mutant(
        "undone_work_taken_over",
        *(_COORDINATOR, "_is_done", taken_as("WorkState.FAILED", "undoing.state")),
        "test_what_was_undone_is_done_again_and_what_could_not_be_undone_is_taken_over",
    ),
    Mutant(
        "node_of_another_module_taken_over",
        *(_COORDINATOR, "take_over", not_compared("module")),
        "test_another_version_takes_over_nodes_with_the_same_id_and_module",
    ),
]

MUTANTS: Final = [
    *FENCES,
    *ADMISSION,
    *CIRCUITS,
    *EXECUTIONS_AND_RUNS,
    *LOOPS,
    *SHARES,
    *OUTAGES,
    *TENANTS,
    *STRANGERS,
    *FILTERS,
    *REPLAYS,
    *RETENTION,
    *TEMPLATES,
    *WAITS,
    *BULK_JOBS,
    *SNAPSHOTS,
    *FORKS,
    *CORES,
    *RED_TEAM,
    *SIMULATED,
]
