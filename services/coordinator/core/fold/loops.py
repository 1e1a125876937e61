"""Bookkeeping of loops. Their items are work like any other, so `runs` and `graph` note that an item has ended."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold import graph
from services.coordinator.core.fold.runs import forget_loop, run_of
from services.coordinator.core.state import Execution, Loop, WorkState


def items_requested(execution: Execution, event: ev.ItemsRequested) -> None:
    work = execution.unread[event.key] = run_of(execution, event).work
    work.state = WorkState.LOOPING


def items_read(execution: Execution, event: ev.ItemsRead) -> None:
    execution.unread.pop(event.key).state = WorkState.BEGUN


def loop_started(execution: Execution, event: ev.LoopStarted) -> None:
    work = run_of(execution, event).work
    loop = Loop(work, event.count, event.parallel_max, event.continues_on_failure, event.delay)
    execution.loops[event.key] = loop
    work.state = WorkState.LOOPING
    graph.release_targets(execution, event.then)


def loop_continued(execution: Execution, event: ev.LoopContinued) -> None:
    execution.loops[event.key].work.state = WorkState.LOOPING
    graph.release_targets(execution, event.then)


def loop_gathered(execution: Execution, event: ev.LoopGathered) -> None:
    run_of(execution, event)
    loop = execution.unstored[event.key] = execution.loops[event.key]
    loop.work.state = WorkState.LOOPING


def loop_ended(execution: Execution, event: ev.LoopEnded) -> None:
    work = run_of(execution, event).work
    work.state = WorkState.BEGUN
    for key in event.cancelled:
        graph.cancel(execution, execution.work[key])
    forget_loop(execution, event.key)
