"""Sets timers. A timer is void as soon as its subject was given another one (`state.is_stale`)."""

from heapq import heappush

from services.coordinator.core.state import Execution, Subject, Timer, TimerKind
from services.coordinator.core.values import Instant


def set_timer(execution: Execution, due: Instant, kind: TimerKind, subject: Subject | None = None) -> int:
    execution.timer_order += 1
    heappush(execution.timers, Timer(due, execution.timer_order, kind, subject))
    return execution.timer_order
