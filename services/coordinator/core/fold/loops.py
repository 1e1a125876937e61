"""Bookkeeping of loops. Their items are work like any other, so `runs` and `graph` note that an item has ended."""

from typing import assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.fold import graph
from services.coordinator.core.fold.runs import forget_loop, run_of
from services.coordinator.core.state import Execution, Work, WorkLoop, WorkState


def apply_to_loop(execution: Execution, event: ev.LoopEvent) -> None:
    work = run_of(execution, event).work
    match event:
        case ev.ItemsRequested():
            execution.unread[event.key] = work
            work.state = WorkState.LOOPING
        case ev.ItemsRead():
            del execution.unread[event.key]
            work.state = WorkState.BEGUN
        case ev.LoopStarted():
            _start(execution, work, event)
        case ev.LoopContinued():
            work.state = WorkState.LOOPING
            graph.release_targets(execution, event.then)
        case ev.LoopGathered():
            execution.unstored[event.key] = execution.loops[event.key]
            work.state = WorkState.LOOPING
        case ev.LoopClosed():
            work.state = WorkState.BEGUN
            for key in event.cancelled:
                graph.cancel(execution, execution.work[key])
            forget_loop(execution, event.key)
        case _:
            assert_never(event)


def _start(execution: Execution, work: Work, event: ev.LoopStarted) -> None:
    execution.loops[event.key] = WorkLoop(
        work, event.count, event.parallel_max, event.continues_on_failure, event.delay
    )
    work.state = WorkState.LOOPING
    graph.release_targets(execution, event.then)
