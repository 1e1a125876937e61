"""Bookkeeping of the answers to commands of people, so that a repeated command gets the first answer."""

from collections import OrderedDict

from services.coordinator.core import events as ev
from services.coordinator.core.state import Answer, Execution

# The limit for each kind of command. Whoever repeats a command does so soon. An older repeat is judged like a new
# command. The kinds are kept apart, so that thousands of one, like the ends of items that others report, push out no
# other.
ANSWERS_MAX = 1_000

TOOK_EFFECT = Answer()
# A message id that api makes ends with a digest of the command's content, behind the name of the request. The name
# begins with the kind of the command, and a number perhaps: `complete.7:...`.
DIGEST_CHARACTERS = 32


def request_of(message_id: str) -> tuple[str, str]:
    """The name of the request, which all repeats share, and the digest of its content; "" if the id has none."""
    name, digest = message_id[: -DIGEST_CHARACTERS - 1], message_id[-DIGEST_CHARACTERS:]
    return (name, digest) if name and message_id[len(name)] == "#" else (message_id, "")


def answer_to(execution: Execution, request: str) -> Answer | None:
    """None: the request is new, or its answer is not remembered any more."""
    answers = execution.answers.get(_kind_of(request))
    return None if answers is None else answers.get(request)


def remember(execution: Execution, message_id: str, answer: Answer = TOOK_EFFECT) -> None:
    """The first answer to a request stays: a later one says that the request had other content."""
    request, digest = request_of(message_id)
    answers = execution.answers.setdefault(_kind_of(request), OrderedDict())
    answers.setdefault(request, answer._replace(digest=digest))
    if len(answers) > ANSWERS_MAX:
        answers.popitem(last=False)


def _kind_of(request: str) -> str:
    kind, colon, _ = request.partition(":")
    return kind.partition(".")[0] if colon else ""


def command_refused(execution: Execution, event: ev.CommandRefused) -> None:
    remember(execution, event.message_id, Answer(event.reason, event.message))


def command_changed_nothing(execution: Execution, event: ev.CommandChangedNothing) -> None:
    remember(execution, event.message_id)
