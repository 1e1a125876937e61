"""One queue per workspace: which of them may have work for a claim, in which order.

A queue is *ready* when executions wait in it and its slots are not known to be all in use. Ready queues are served
round robin: a queue that a claim has looked at goes to the end of the line, so that ten thousand executions of one
workspace delay no other workspace. A full queue leaves the line until a slot may be free. A queue whose claim the
database refuses leaves the line for ASIDE_SECONDS: it is *aside*.

All of this is a hint, given by an enqueue, a freed slot or a notice from another replica. A lost hint does no lasting
harm, because the poll names every workspace with work again.
"""

from collections.abc import Iterable
from itertools import islice

from services.dispatcher.core.items import WorkspaceView

# How long a count of queued executions is trusted while it is far from the limit.
COUNT_TRUSTED_SECONDS = 2.0
# Rows counted per second, a tenth of what an index scan reaches, because they are counted under the workspace's lock.
# From half of the limit on, 100,000 rows are counted every 0.1 s, 1,000 rows in about every batch.
# This replica adds its own changes to its count, but does not know those of others: in that time several replicas may
# admit more than the limit, or refuse starts that have room.
COUNTED_PER_SECOND = 1_000_000
# A queue whose claim the database refuses is left alone for this time.
ASIDE_SECONDS = 30.0
# Beyond this number, empty queues are forgotten. Their next item makes them known again.
QUEUES_KEPT_MAX = 20_000


class WorkspaceQueue:
    __slots__ = ("counted_at", "is_at_capacity", "is_full", "queued", "queued_max", "revision")

    def __init__(self) -> None:
        self.is_full = False
        # Full while executions wait in it; this is logged when it begins.
        self.is_at_capacity = False
        # Revision of the limits that the database is known to have; -1 = not known.
        self.revision = -1
        self.queued_max = 0
        self.queued = 0
        self.counted_at: float | None = None


class WorkspaceQueues:
    def __init__(self) -> None:
        self._queues: dict[str, WorkspaceQueue] = {}
        # The line of ready queues, in the order of service.
        self._ready: dict[str, None] = {}
        # Workspaces in which executions wait, whether their queue is ready, full or aside.
        self._waiting: set[str] = set()
        # The monotonic time at which each queue returns from aside.
        self._aside: dict[str, float] = {}

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_waiting(self) -> bool:
        """Whether a freed slot may be of use."""
        return bool(self._waiting)

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def work_arrived(self, workspace: str) -> None:
        """An execution waits in this workspace."""
        self._waiting.add(workspace)
        self._line_up(workspace, self._queue_of(workspace))

    def slot_freed(self, workspace: str) -> None:
        """A slot of this workspace may be free."""
        queue = self._queues.get(workspace)
        if queue is not None:
            queue.is_full = False
            self._line_up(workspace, queue)

    def polled(self, workspaces: Iterable[str]) -> None:
        """These workspaces have waiting executions, as just read. Look at each again, even if it is full."""
        for workspace in workspaces:
            self.work_arrived(workspace)
            self.slot_freed(workspace)

    def takes_new_starts(self, workspace: str) -> bool:
        """Whether a new start may go ahead: no execution is known to wait, nor the slots to be in use."""
        queue = self._queues.get(workspace)
        return workspace not in self._waiting and (queue is None or not queue.is_full)

    def take(self, count: int) -> list[str]:
        """The next queues to look at. They move to the end of the line."""
        taken = list(islice(self._ready, count))
        for workspace in taken:
            del self._ready[workspace]
            self._ready[workspace] = None
        return taken

    def update_from(self, view: WorkspaceView, now: float) -> bool:
        """Take over what a committed batch has read. Returns True when the queue has just become full with executions
        waiting.
        """
        queue = self._queue_of(view.workspace)
        if view.has_more:
            self._waiting.add(view.workspace)
        else:
            self._waiting.discard(view.workspace)
        queue.is_full = view.free <= view.taken
        if view.queued is not None:
            queue.queued, queue.counted_at = view.queued, now
        else:
            queue.queued = max(0, queue.queued + view.added)
        was_at_capacity = queue.is_at_capacity
        queue.is_at_capacity = view.has_more and queue.is_full
        self._line_up(view.workspace, queue)
        return queue.is_at_capacity and not was_at_capacity

    def set_aside(self, workspace: str, now: float) -> None:
        """Leave this workspace alone for a while: the database refuses to claim from it."""
        self._aside[workspace] = now + ASIDE_SECONDS
        self.work_arrived(workspace)

    def end_aside(self, now: float) -> None:
        """Look again at the workspaces that have been aside for long enough."""
        for workspace in [name for name, until in self._aside.items() if until <= now]:
            del self._aside[workspace]
            self._line_up(workspace, self._queue_of(workspace))

    def forget(self, workspace: str) -> None:
        """Drop the queue of a workspace that the database does not have. Nothing can be claimed from it."""
        self._ready.pop(workspace, None)
        self._waiting.discard(workspace)
        self._queues.pop(workspace, None)

    def knows_limits(self, workspace: str, revision: int) -> bool:
        queue = self._queues.get(workspace)
        return queue is not None and queue.revision >= revision

    def limits_stored(self, workspace: str, revision: int, queued_max: int) -> None:
        """The database has limits of this revision or a later one."""
        queue = self._queue_of(workspace)
        if revision > queue.revision:
            queue.revision, queue.queued_max = revision, queued_max
            # A raised limit may have opened slots.
            self.slot_freed(workspace)

    def waiting(self, workspace: str, arriving: int, now: float) -> int | None:
        """The number of executions that wait. None: the batch has to count them."""
        queue = self._queues.get(workspace)
        if queue is None or queue.counted_at is None:
            return None
        trusted = COUNT_TRUSTED_SECONDS
        if (queue.queued + arriving) * 2 >= queue.queued_max:
            trusted = min(trusted, queue.queued_max / COUNTED_PER_SECOND)
        return queue.queued if now - queue.counted_at <= trusted else None

    def _line_up(self, workspace: str, queue: WorkspaceQueue) -> None:
        if workspace in self._waiting and not queue.is_full and workspace not in self._aside:
            self._ready.setdefault(workspace)
        else:
            self._ready.pop(workspace, None)

    def _queue_of(self, workspace: str) -> WorkspaceQueue:
        queue = self._queues.get(workspace)
        if queue is None:
            if len(self._queues) >= QUEUES_KEPT_MAX:
                self._queues = {name: each for name, each in self._queues.items() if name in self._waiting}
            queue = self._queues[workspace] = WorkspaceQueue()
        return queue
