"""One event further: `evolve(execution, event)` writes into the state what the event says happened.

Holds no rule and refuses nothing: whether it may happen was decided before, and is not asked again when the journal is
folded years later. An event that does not fit the state is a bug and crashes here.

The cost of an event is that of the edges of the nodes it names. Nothing is copied.
"""

from collections.abc import Iterable
from heapq import heappush
from typing import assert_never

from services.coordinator.core.events import (
    BackoffEnded,
    ControlRendered,
    Event,
    ExecutionAdopted,
    ExecutionFinished,
    ExecutionStarted,
    JoinPassed,
    LateReportRejected,
    NodesBlocked,
    NodesSkipped,
    OutputRequested,
    RunCancelled,
    RunFailed,
    RunLeased,
    RunLost,
    RunProgressed,
    RunReleased,
    RunStarted,
    RunSucceeded,
    SleepEnded,
    SleepStarted,
    StopOrdered,
)
from services.coordinator.core.graph import Outcome, Resolution, Verdict, judge, resolve
from services.coordinator.core.retry import death_error
from services.coordinator.core.state import Execution, Run, Stop, Timer, TimerKind, Work, WorkState
from services.coordinator.core.values import (
    SECOND,
    BrokenInvariant,
    Error,
    ErrorClass,
    Failure,
    FailureReason,
    Instant,
    RunState,
    Span,
)

# A runner ends a run at its timeout by itself; the coordinator does so only when it has heard nothing for this long.
BACKSTOP_MARGIN: Span = 5 * SECOND

EMPTY_OUTPUT = b"{}"


def fold(execution: Execution, events: Iterable[Event]) -> Execution:
    for event in events:
        evolve(execution, event)
    return execution


def evolve(execution: Execution, event: Event) -> None:
    execution.seq += 1
    match event:
        case RunSucceeded():
            _run_succeeded(execution, event)
        case RunLeased():
            _run_leased(execution, event)
        case ExecutionStarted():
            _started(execution, event)
        case ExecutionFinished():
            _finished(execution, event)
        case ExecutionAdopted():
            execution.epoch = event.epoch
            execution.holder = event.holder
        case RunStarted():
            _run_started(execution, event)
        case RunProgressed():
            _run_progressed(execution, event)
        case ControlRendered():
            _control_rendered(execution, event)
        case RunFailed():
            _run_failed(execution, event)
        case RunLost():
            _run_lost(execution, event)
        case RunReleased():
            _run_released(execution, event)
        case RunCancelled():
            _run_cancelled(execution, event)
        case LateReportRejected():
            execution.runs[event.number - 1].is_late_noted = True
        case BackoffEnded():
            work = _work(execution, event.node, event.iteration, event.generation)
            execution.waiting -= 1
            work.timer = 0
            _make_ready(execution, work)
        case JoinPassed():
            _join_passed(execution, event)
        case SleepStarted():
            _sleep_started(execution, event)
        case SleepEnded():
            _sleep_ended(execution, event)
        case NodesSkipped():
            _nodes_skipped(execution, event)
        case NodesBlocked():
            for node_id in event.nodes:
                _settle(execution, execution.works[execution.definition.index[node_id]], Outcome.BLOCKED)
        case OutputRequested():
            execution.is_output_requested = True
            _make_ready(execution, execution.works[-1])
        case StopOrdered():
            _stop_ordered(execution, event)
        case _:
            assert_never(event)


# The execution


def _started(execution: Execution, event: ExecutionStarted) -> None:
    execution.epoch = event.epoch
    execution.holder = event.holder
    execution.workspace = event.workspace
    execution.workflow = event.workflow
    execution.version = event.version
    execution.version_id = event.version_id
    execution.input = event.input
    execution.labels = event.labels
    execution.priority = event.priority
    execution.trigger_type = event.trigger_type
    execution.caller = event.caller
    execution.request_id = event.request_id
    execution.parent_execution_id = event.parent_execution_id
    execution.create_time = event.create_time
    execution.grant_time = event.grant_time
    execution.start_time = event.time
    execution.traceparent = event.traceparent
    execution.retry = event.retry
    if event.deadline:
        execution.deadline = event.deadline
        _set_timer(execution, event.deadline, TimerKind.DEADLINE)
    for root in execution.definition.roots:
        _start_work(execution, execution.works[root])


def _stop_ordered(execution: Execution, event: StopOrdered) -> None:
    execution.stop = Stop(event.outcome, event.error, event.answer_by)
    _set_timer(execution, event.answer_by, TimerKind.ANSWER)
    for work in execution.ready:
        work.state = WorkState.CANCELLED
    execution.ready.clear()
    for work in execution.works:
        if work.state is WorkState.BACKOFF:
            work.state = WorkState.CANCELLED
            work.timer = 0
    execution.waiting = 0


def _finished(execution: Execution, event: ExecutionFinished) -> None:
    if execution.live or execution.ready or execution.held or execution.waiting:
        raise BrokenInvariant("finished with work under way")
    execution.final_state = event.state
    execution.output = event.output
    execution.error = event.error
    execution.end_time = event.time
    execution.duration = event.duration
    execution.timers.clear()


# Runs on runners


def _run_leased(execution: Execution, event: RunLeased) -> None:
    work = _work(execution, event.node, event.iteration, event.generation)
    del execution.ready[work]
    work.state = WorkState.LIVE
    work.attempts = event.attempt
    if not work.first_time:
        work.first_time = event.time
    run = _mint(execution, event.number, work, RunState.LEASED, event.time)
    run.instance_id = event.instance_id
    run.runner = event.runner
    run.is_idempotent = event.is_idempotent or work.node.is_idempotent
    run.traceparent = event.traceparent
    execution.live[event.number] = run
    if work.node.timeout:
        _set_backstop(execution, run, event.time)


def _run_started(execution: Execution, event: RunStarted) -> None:
    run = execution.live[event.number]
    run.state = RunState.RUNNING
    run.start_time = event.start_time
    run.heartbeat_time = event.time
    if run.work.node.timeout:
        _set_backstop(execution, run, event.time)


def _run_progressed(execution: Execution, event: RunProgressed) -> None:
    run = execution.live[event.number]
    run.heartbeat_time = event.time
    run.progress = event.progress
    run.progress_message = event.message
    run.work.cursor = event.cursor


def _run_succeeded(execution: Execution, event: RunSucceeded) -> None:
    run = _take_live(execution, event.number)
    work = run.work
    run.is_answered = True
    run.state = RunState.SUCCESS
    run.start_time = event.start_time
    run.end_time = event.end_time
    run.inputs_hash = event.inputs_hash
    run.config_hash = event.config_hash
    run.branch = event.branch
    if event.cost_tokens:
        run.cost_tokens = event.cost_tokens
        execution.cost_tokens += event.cost_tokens
    run.output = work.output = event.output
    _settle(execution, work, Outcome.SUCCEEDED, event.branch)


def _run_failed(execution: Execution, event: RunFailed) -> None:
    run = _take_live(execution, event.number)
    work = run.work
    run.is_answered = event.is_reported
    run.state = RunState.FAILED
    run.start_time = event.start_time
    run.end_time = event.end_time
    run.inputs_hash = event.inputs_hash
    run.config_hash = event.config_hash
    run.cost_tokens = event.cost_tokens
    execution.cost_tokens += event.cost_tokens
    run.error = event.error
    run.fingerprint = event.fingerprint
    run.retry_time = event.retry_time
    work.may_have_run_before = True
    if event.error.error_class is not ErrorClass.CIRCUIT_OPEN:
        work.failures += 1
    if event.reason is not None:
        _fail(execution, work, event.reason, event.error)
        return
    execution.retries += 1
    execution.waiting += 1
    work.state = WorkState.BACKOFF
    work.timer = _set_timer(execution, event.retry_time, TimerKind.BACKOFF, work)


def _run_lost(execution: Execution, event: RunLost) -> None:
    run = _take_live(execution, event.number)
    work = run.work
    run.end_time = event.time
    run.error = death_error(run.runner, event.reason)
    run.state = RunState.DLQ if event.reason is FailureReason.POISON else RunState.FAILED
    work.may_have_run_before = True
    work.deaths += 1
    if event.reason is None:
        _make_ready(execution, work)
    else:
        _fail(execution, work, event.reason, run.error)


def _run_released(execution: Execution, event: RunReleased) -> None:
    run = _take_live(execution, event.number)
    run.is_answered = event.is_reported
    run.state = RunState.CANCELLED
    run.end_time = event.time
    if event.may_have_begun:
        run.work.may_have_run_before = True
    if execution.stop is None:
        _make_ready(execution, run.work)
    else:
        run.work.state = WorkState.CANCELLED


def _run_cancelled(execution: Execution, event: RunCancelled) -> None:
    number = event.number
    run = execution.held.pop(number, None) or execution.live.pop(number)
    run.timer = 0
    run.is_answered = run.is_answered or event.is_reported
    run.state = RunState.CANCELLED
    run.start_time = event.start_time or run.start_time
    run.end_time = event.end_time or event.time
    run.work.state = WorkState.CANCELLED


# Nodes that the core does itself


def _control_rendered(execution: Execution, event: ControlRendered) -> None:
    run = _take_live(execution, event.number)
    run.is_answered = True
    run.state = RunState.RUNNING
    run.start_time = event.start_time
    # Nobody has it now; the event that tells what it waits for follows in the same append.
    execution.held[event.number] = run
    run.work.state = WorkState.HELD


def _join_passed(execution: Execution, event: JoinPassed) -> None:
    work = _work(execution, event.node, event.iteration, event.generation)
    work.attempts += 1
    run = _mint(execution, event.number, work, RunState.SUCCESS, event.time)
    run.start_time = run.end_time = event.time
    run.output = work.output = EMPTY_OUTPUT
    _settle(execution, work, Outcome.SUCCEEDED)


def _sleep_started(execution: Execution, event: SleepStarted) -> None:
    run = execution.held.get(event.number)
    if run is None:
        work = _work(execution, event.node, event.iteration, event.generation)
        work.attempts += 1
        work.state = WorkState.HELD
        run = _mint(execution, event.number, work, RunState.RUNNING, event.time)
        run.start_time = event.time
        execution.held[event.number] = run
    run.timer = _set_timer(execution, event.wake_time, TimerKind.SLEEP, run)


def _sleep_ended(execution: Execution, event: SleepEnded) -> None:
    run = execution.held.pop(event.number)
    run.timer = 0
    run.state = RunState.SUCCESS
    run.end_time = event.time
    run.output = run.work.output = EMPTY_OUTPUT
    _settle(execution, run.work, Outcome.SUCCEEDED)


# The graph


def _nodes_skipped(execution: Execution, event: NodesSkipped) -> None:
    for number, node_id in enumerate(event.nodes, event.first_number):
        work = execution.works[execution.definition.index[node_id]]
        run = _mint(execution, number, work, RunState.SKIPPED, event.time)
        run.start_time = run.end_time = event.time
        _settle(execution, work, Outcome.SKIPPED)


def _fail(execution: Execution, work: Work, reason: FailureReason, error: Error) -> None:
    if reason is FailureReason.STOPPED:
        work.state = WorkState.CANCELLED
        return
    node = work.node
    if node.is_failure_handled:
        _settle(execution, work, Outcome.HANDLED)
        return
    if execution.first_failure is None:
        execution.first_failure = Failure(node.id, error.type, error.message)
    _settle(execution, work, Outcome.FAILED)


_SETTLED = {
    Outcome.SUCCEEDED: WorkState.SUCCEEDED,
    Outcome.HANDLED: WorkState.FAILED,
    Outcome.FAILED: WorkState.FAILED,
    Outcome.SKIPPED: WorkState.SKIPPED,
    Outcome.BLOCKED: WorkState.BLOCKED,
}


def _settle(execution: Execution, work: Work, outcome: Outcome, branch: str = "") -> None:
    """The node's outcome is known: its edges resolve, and what they were the last to hold up starts."""
    node = work.node
    work.state = _SETTLED[outcome]
    if node.index < execution.definition.size:
        execution.unsettled -= 1
    if execution.stop is not None:
        return
    works, unresolved, taken, blocked = (
        execution.works,
        execution.unresolved,
        execution.taken,
        execution.blocked,
    )
    for edge in node.edges:
        target = edge.target
        unresolved[target] -= 1
        resolution = resolve(outcome, edge, branch)
        if resolution is Resolution.TAKEN:
            taken[target] += 1
        elif resolution is Resolution.BLOCKED:
            blocked[target] += 1
        target_work = works[target]
        if target_work.state is WorkState.IDLE:
            verdict = judge(target_work.node.join, unresolved[target], taken[target], blocked[target])
            if verdict is Verdict.START:
                _start_work(execution, target_work)


def _start_work(execution: Execution, work: Work) -> None:
    """Its join holds. A control node waits for its own event, which follows in the same append."""
    if work.node.needs_runner:
        _make_ready(execution, work)


def _make_ready(execution: Execution, work: Work) -> None:
    work.state = WorkState.READY
    execution.ready[work] = None


# Parts


def _take_live(execution: Execution, number: int) -> Run:
    run = execution.live.pop(number)
    run.timer = 0
    return run


def _work(execution: Execution, node_id: str, iteration: int, generation: int) -> Work:
    work = execution.works[execution.definition.index[node_id]]
    if work.iteration != iteration or work.generation != generation:
        raise BrokenInvariant(f"{node_id}: no iteration {iteration} of generation {generation}")
    return work


def _mint(execution: Execution, number: int, work: Work, state: RunState, time: Instant) -> Run:
    if number != len(execution.runs) + 1:
        raise BrokenInvariant(f"run {number} does not follow run {len(execution.runs)}")
    run = Run(number, work, state, time, execution.seq)
    execution.runs.append(run)
    return run


def _set_backstop(execution: Execution, run: Run, time: Instant) -> None:
    due = time + run.work.node.timeout + BACKSTOP_MARGIN
    run.timer = _set_timer(execution, due, TimerKind.BACKSTOP, run)


def _set_timer(execution: Execution, due: Instant, kind: TimerKind, subject: Work | Run | None = None) -> int:
    execution.timer_order += 1
    heappush(execution.timers, Timer(due, execution.timer_order, kind, subject))
    return execution.timer_order
