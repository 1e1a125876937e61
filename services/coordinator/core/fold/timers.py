"""Sets timers. A timer is void as soon as its subject was given another one (`state.is_stale`).

While the execution is paused, timers of backoffs and waits are kept apart, so that none of them comes up.

Most timers become void long before they are due, such as the backstop of each run. They are thrown away at every
1,000th timer that is set, so a long execution does not keep one for each of its runs.
"""

from heapq import heapify, heappush

from services.coordinator.core.state import HELD_BY_PAUSE, Execution, Subject, Timer, TimerKind, is_stale
from services.coordinator.core.values import Instant

TIMERS_PER_LOOK = 1_000


def set_timer(execution: Execution, due: Instant, kind: TimerKind, subject: Subject | None = None) -> int:
    execution.timer_order += 1
    timer = Timer(due, execution.timer_order, kind, subject)
    if execution.paused_by is not None and kind in HELD_BY_PAUSE:
        execution.held_timers.append(timer)
    else:
        if execution.timer_order % TIMERS_PER_LOOK == 0:
            _throw_void_ones_away(execution)
        heappush(execution.timers, timer)
    return execution.timer_order


def _throw_void_ones_away(execution: Execution) -> None:
    execution.timers = [timer for timer in execution.timers if not is_stale(execution, timer)]
    heapify(execution.timers)


def hold_timers(execution: Execution) -> None:
    execution.held_timers = [timer for timer in execution.timers if timer.kind in HELD_BY_PAUSE]
    execution.timers = [timer for timer in execution.timers if timer.kind not in HELD_BY_PAUSE]
    heapify(execution.timers)


def release_timers(execution: Execution) -> None:
    execution.timers += execution.held_timers
    heapify(execution.timers)
    execution.held_timers = []
