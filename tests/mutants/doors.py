"""The door that each attack of the red team tries, and how a mutant opens it."""

from typing import Final

from tests.mutants.changes import Change, answered, not_compared, sql_not_compared, sql_replaced, taken_as
from tests.mutants.mutant import Mutant

_API: Final = "services/api"
_CHASSIS: Final = "services/chassis"
_COORDINATOR: Final = "services/coordinator"
_DISPATCHER: Final = "services/dispatcher"
_RUNNER: Final = "services/runner"
_RENDERING: Final = "services/rendering"

# For each attack of tests/chaos/attacks.py: where the door is that it tries, and how to open it. None of these lets a
# test call an address that is not of this machine.
DOORS: Final[dict[str, tuple[str, str, Change]]] = {
    "opens_calls_without_end": (_CHASSIS, "Shares.take", not_compared("portions")),
    "sends_parts_of_messages": (_CHASSIS, "Shares.take", not_compared("portions")),
    "opens_streams_without_frames": (_CHASSIS, "_work_on_stream", answered("read", "{arguments}.read()")),
    "waits_with_large_inputs": (_CHASSIS, "Guard._hold_request", answered("held_by_request", "1")),
    "leaves_answers_unread": (_CHASSIS, "Guard", answered("held_by_answer", "0")),
    "answers_in_a_slow_charset": (_RENDERING, "codec_of", not_compared("codec")),
    "reads_huge_outputs": (_RUNNER, "read", answered("is_plain_document", "True")),
    "blocks_the_event_loop": (f"{_RUNNER}/app", "call", answered("call", "_awaited(function, *given)", "module_loop")),
    "calls_private_addresses": (
        *(_RUNNER, "Egress.permits"),
        answered("_is_public", "{arguments}.is_loopback or _is_public({arguments})"),
    ),
    "redirects_with_credentials": (_RUNNER, "_Headers.__call__", answered("origin", "1")),
    "sends_secrets_that_fail": (_RUNNER, "SentSecrets.withheld_from", answered("replace", "{receiver}")),
    "watches_after_its_key_is_revoked": (_CHASSIS, "LongCalls._check", answered("cancel", "None")),
    "watches_after_its_workspace_is_closed": (_API, "_is_good", taken_as("key.is_workspace_closed", "False")),
    "brings_two_keys": (_CHASSIS, "Guard._admit", not_compared("authorization")),
    "goes_on_from_untrue_cursors": (_RUNNER, "seconds_left", answered("min", "float(left)")),
    "asks_for_what_services_call": (_CHASSIS, "_Files._known", not_compared("file")),
    "attaches_as_another_runner": (_CHASSIS, "_OPEN", sql_not_compared("t.opened_by")),
    "looks_for_the_service_secret": ("deploy/local", "Child._spawn", taken_as("CONFINED", "()")),
    "calls_methods_in_templates": (_RENDERING, "_Data.of", answered("needs_guard", "False")),
    "fills_all_places": (_COORDINATOR, "RunnerScope.reserved", taken_as("self._reserve", "0")),
    "renders_slow_templates": (_RENDERING, "RenderingChildren.submit", taken_as("workspace", "''")),
    "hands_back_all_grants": (_COORDINATOR, "_Line._may_have", answered("is_barred", "False")),
    "reports_outputs_that_it_has_not": (_COORDINATOR, "_is_own", answered("is_blob_of", "True")),
    "starves_low_priorities": (
        *(_DISPATCHER, "CLAIM"),
        sql_replaced("urgent DESC, q.order_time", "urgent DESC, q.priority DESC, q.order_time"),
    ),
    "starts_with_slow_inputs": (_CHASSIS, "FairLine.turn", taken_as("workspace", "''")),
}

RED_TEAM: Final = [
    Mutant(f"door_open_to_one_that_{attack}", *door, f"test_a_quiet_workspace_keeps_its_service_beside[{attack}]")
    for attack, door in DOORS.items()
]
