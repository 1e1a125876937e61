"""Says what the outcome of an item means for its loop. One table is the whole of it.

    the item                                      the loop
    ended the loop                                goes on: it decides about its own outcome
    did not, and there are further items          begins the next one; goes on first if there is a delay between turns
    did not, and was the last one under way       goes on
    otherwise                                     waits for the other items

An item ends its loop if it failed and the loop does not continue on failures, if it is a turn after which the `until`
is true, or if the outputs so far are too large for a list.

`after_item` is asked once per outcome of an item, before the event is emitted, and its answer is part of the event.
"That the loop goes on" means that its control begins once more (`controls/loop.py`).
"""

from services.coordinator.core.events import NOTHING_FOLLOWS, Consequences
from services.coordinator.core.state import Work, WorkLoop, WorkState

# The outputs of all items of a loop together, because they become one output.
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
# The branch that a turn takes after which the `until` is true; another one, if it is false.
DONE = "true"


def after_item(item: Work, branch: str = "", *, has_failed: bool = False) -> Consequences:
    loop = item.loop
    assert loop is not None
    if loop.work.state is not WorkState.LOOPING:
        # Another item of the same decision has ended it.
        return NOTHING_FOLLOWS
    if is_over(loop, branch, has_failed=has_failed):
        return Consequences(begun=(loop.work.key,))
    if loop.begun < loop.count and not loop.delay:
        return items_begin(loop, 1)
    # The item itself is one of those under way.
    return Consequences(begun=(loop.work.key,)) if len(loop.going) == 1 else NOTHING_FOLLOWS


def is_over(loop: WorkLoop, branch: str, *, has_failed: bool) -> bool:
    if has_failed and not loop.continues_on_failure:
        return True
    is_last_turn = bool(branch) and branch == DONE and has_turns(loop)
    return is_last_turn or loop.output_bytes > OUTPUT_BYTES_MAX


def has_turns(loop: WorkLoop) -> bool:
    """It is a repeat@1."""
    body = loop.work.node.body
    return body is not None and bool(body.until)


def items_begin(loop: WorkLoop, count: int) -> Consequences:
    """So many further items begin."""
    body = loop.work.node.body
    assert body is not None
    keys = tuple([loop.key_of(loop.begun + 1 + number) for number in range(count)])
    return Consequences(ready=keys) if body.needs_runner else Consequences(begun=keys)
