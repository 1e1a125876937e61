"""Bookkeeping of the answers to commands of people, so that a repeated command gets the first answer."""

from services.coordinator.core import events as ev
from services.coordinator.core.state import Answer, Execution

# Whoever repeats a command does so soon. An older repeat is judged like a new command.
ANSWERS_MAX = 1_000

TOOK_EFFECT = Answer()


def remember(execution: Execution, message_id: str, answer: Answer = TOOK_EFFECT) -> None:
    execution.answers[message_id] = answer
    if len(execution.answers) > ANSWERS_MAX:
        execution.answers.popitem(last=False)


def command_refused(execution: Execution, event: ev.CommandRefused) -> None:
    remember(execution, event.message_id, Answer(event.reason, event.message))


def run_quarantined(execution: Execution, event: ev.RunQuarantined) -> None:
    remember(execution, event.message_id)
