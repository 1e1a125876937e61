"""How an execution is ended before its graph is: cancelled, or out of time.

What waits ends at once; what runs is told to stop and may still report, but nothing follows from it any more. When the
last one has answered, or after ANSWER_TERM without them, the execution is final. The first order decides what it ends
as.
"""

from services.coordinator.core.commands import Cancel
from services.coordinator.core.decide.plan import Plan
from services.coordinator.core.decision import Decision, RefusalReason, nothing_new, refuse
from services.coordinator.core.state import Execution
from services.coordinator.core.values import SECOND, ExecutionState, Failure, Instant, Span


def cancel(execution: Execution, command: Cancel, now: Instant) -> Decision:
    if execution.is_final and execution.state is not ExecutionState.CANCELLED:
        return refuse(RefusalReason.EXECUTION_FINAL, f"the execution ended as {execution.state}")
    if execution.is_final or execution.stop is not None:
        return nothing_new()
    plan = Plan(execution, now)
    order_cancel(plan, command)
    return plan.conclude()


def order_cancel(plan: Plan, command: Cancel) -> None:
    failure = Failure("", "CANCELLED", command.reason)
    plan.order_stop(ExecutionState.CANCELLED, failure, command.message_id, command.caller)


def order_timeout(plan: Plan, timeout: Span) -> None:
    message = f"not done {timeout / SECOND:g} s after it was created"
    plan.order_stop(ExecutionState.TIMEOUT, Failure("", "TIMEOUT", message))
