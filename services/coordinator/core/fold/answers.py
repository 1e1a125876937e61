"""Bookkeeping of the answers to commands of people, so that a repeated command gets the first answer."""

from services.coordinator.core import events as ev
from services.coordinator.core.state import Answer, Execution

# Whoever repeats a command does so soon. An older repeat is judged like a new command.
ANSWERS_MAX = 1_000

TOOK_EFFECT = Answer()
# A message id that api makes ends with a digest of the command's content, behind the name of the request.
_DIGEST_CHARACTERS = 32


def request_of(message_id: str) -> tuple[str, str]:
    """The name of the request, which all repeats share, and the digest of its content; "" if the id has none."""
    name, digest = message_id[: -_DIGEST_CHARACTERS - 1], message_id[-_DIGEST_CHARACTERS:]
    return (name, digest) if name and message_id[len(name)] == "#" else (message_id, "")


def remember(execution: Execution, message_id: str, answer: Answer = TOOK_EFFECT) -> None:
    """The first answer to a request stays: a later one says that the request had other content."""
    request, digest = request_of(message_id)
    execution.answers.setdefault(request, answer._replace(digest=digest))
    if len(execution.answers) > ANSWERS_MAX:
        execution.answers.popitem(last=False)


def command_refused(execution: Execution, event: ev.CommandRefused) -> None:
    remember(execution, event.message_id, Answer(event.reason, event.message))
