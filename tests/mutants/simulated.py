"""Mutants that the simulation notices."""

from typing import Final

from tests.mutants.changes import also, answered, not_compared, taken_as
from tests.mutants.mutant import Mutant

_CHASSIS: Final = "services/chassis"
_COORDINATOR: Final = "services/coordinator"
_DISPATCHER: Final = "services/dispatcher"

# The simulation notices these within its first worlds. The last two change the stores in memory, which stand for those
# in PostgreSQL there.
_MEMORY: Final = "tests/support"
SIMULATED: Final = [
    Mutant(
        "take_over_that_grants_live_runs_again",
        *(_COORDINATOR, "adopt", taken_as("command.live", "()")),
        "test_promises_hold_in_every_world[0]",
    ),
    Mutant(
        "report_acknowledged_before_the_commit",
        *(_COORDINATOR, "OwnedExecutions.reported", also("session.acknowledge([each.report_id for each in reports])")),
        "test_promises_hold_in_every_world[0]",
    ),
    Mutant(
        "end_acknowledged_before_the_commit",
        *(_DISPATCHER, "CoordinatorSessionOwner.on_reports"),
        also("session.acknowledge([each.report_id for each in reports])"),
        "test_promises_hold_in_every_world[0]",
    ),
    Mutant(
        "append_of_unknown_outcome_treated_as_another_holders",
        *(_COORDINATOR, "CommitLoop._is_ours", not_compared("fence")),
        "test_promises_hold_in_every_world[100]",
    ),
    Mutant(
        "credit_below_zero_costs_a_place",
        *(_CHASSIS, "divide", answered("max", "stream.left", where="left")),
        "test_promises_hold_in_every_world[200]",
    ),
    Mutant(
        "timers_that_fire_while_paused",
        *(_COORDINATOR, "hold_timers", taken_as("HELD_BY_PAUSE", "()")),
        "test_promises_hold_in_every_world[0]",
    ),
    Mutant(
        "dead_letter_resolved_again",
        *(f"{_COORDINATOR}/core/handlers", "_pending", not_compared("PENDING")),
        "test_promises_hold_in_every_world[0]",
    ),
    Mutant(
        "slots_not_counted",
        *(_MEMORY, "QueueTables.free_slots", answered("sum", "0")),
        "test_promises_hold_in_every_world[0]",
    ),
    Mutant(
        "fence_dropped_from_the_append",
        *(_MEMORY, "MemoryJournal._append", not_compared("epoch")),
        "test_promises_hold_in_every_world[0]",
    ),
]
