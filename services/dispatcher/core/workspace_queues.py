"""Which workspaces are worth a look: one queue per workspace, as levels, served in turn.

A queue is *ready* when something waits in it and its slots are not known to be in use. Ready queues are served round
robin: those a claim has looked at go to the end of the line, so that ten thousand waiting in one workspace delay
nobody else. A full queue leaves the line until a slot may be free; so it costs nothing and blocks nobody. So does one
whose claim the database refuses, for a while: it is *aside*.

Everything here is a hint. What raises it: an enqueue, a freed slot, a word from another replica, and behind all of
these the poll, which names every workspace with work again.
"""

from collections.abc import Iterable

from services.dispatcher.core.items import WorkspaceView

# How long a count of what waits is trusted, in seconds, while it is far from the limit.
COUNT_TRUSTED_SECONDS = 2.0
# A tenth of what an index gives. From half of the limit on, counting walks at most so many rows a second, since it is
# done under the workspace's lock: a hundred thousand are counted every 0.1 s, a thousand in about every turn. What this
# replica admits and claims in between is added to the count; what others do is not, so that several of them may pass
# the limit by what they admit in such a time, or refuse for so long what has found room.
COUNTED_PER_SECOND = 1_000_000
# How long a queue is left alone whose claim the database refuses, in seconds.
ASIDE_SECONDS = 30.0
# Beyond this, queues in which nothing waits are forgotten; what was known of them is learnt again at their next item.
QUEUES_KEPT_MAX = 20_000


class WorkspaceQueue:
    __slots__ = (
        "counted_at",
        "has_work",
        "is_aside",
        "is_at_capacity",
        "is_full",
        "queued",
        "queued_max",
        "revision",
    )

    def __init__(self) -> None:
        self.has_work = False
        self.is_full = False
        # Its claim failed; not looked at until `end_aside`.
        self.is_aside = False
        # As told to people: full while something waits.
        self.is_at_capacity = False
        # Of the limits that the database is known to hold; -1 = not known.
        self.revision = -1
        self.queued_max = 0
        self.queued = 0
        self.counted_at: float | None = None


class WorkspaceQueues:
    def __init__(self) -> None:
        self._queues: dict[str, WorkspaceQueue] = {}
        # The line; insertion order is the order of service.
        self._ready: dict[str, None] = {}
        # Those in which something is known to wait, ready or full.
        self._waiting: set[str] = set()
        # Those aside, and until when; the first to come back first.
        self._aside: dict[str, float] = {}

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_waiting(self) -> bool:
        """Whether a slot that comes free may be wanted."""
        return bool(self._waiting)

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def work(self, workspace: str) -> None:
        """Something waits there."""
        queue = self._queue_of(workspace)
        queue.has_work = True
        self._waiting.add(workspace)
        self._line_up(workspace, queue)

    def slot(self, workspace: str) -> None:
        """A slot may be free there."""
        queue = self._queues.get(workspace)
        if queue is not None:
            queue.is_full = False
            self._line_up(workspace, queue)

    def polled(self, workspaces: Iterable[str]) -> None:
        """All that have something waiting, as just read: look at each again, full or not."""
        for workspace in workspaces:
            queue = self._queue_of(workspace)
            queue.has_work, queue.is_full = True, False
            self._waiting.add(workspace)
            self._line_up(workspace, queue)

    def takes_new_starts(self, workspace: str) -> bool:
        """Whether a new start may go ahead at once: nobody is known to wait, and the slots are not known to be used."""
        queue = self._queues.get(workspace)
        return queue is None or not (queue.has_work or queue.is_full)

    def take(self, count: int) -> list[str]:
        """The next queues to look at; they go to the end of the line."""
        taken = [workspace for workspace, _ in zip(self._ready, range(count), strict=False)]
        for workspace in taken:
            del self._ready[workspace]
            self._ready[workspace] = None
        return taken

    def saw(self, view: WorkspaceView, now: float) -> bool:
        """What a committed turn found. True when the queue has just come to capacity with work waiting."""
        queue = self._queue_of(view.workspace)
        queue.has_work = view.has_more
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
        queue.is_at_capacity = queue.has_work and queue.is_full
        if queue.is_full or not queue.has_work:
            self._ready.pop(view.workspace, None)
        else:
            self._line_up(view.workspace, queue)
        return queue.is_at_capacity and not was_at_capacity

    def set_aside(self, workspace: str, now: float) -> None:
        """The database refuses to claim from it, and would refuse at once again."""
        queue = self._queue_of(workspace)
        queue.has_work = queue.is_aside = True
        self._waiting.add(workspace)
        self._ready.pop(workspace, None)
        self._aside.pop(workspace, None)
        self._aside[workspace] = now + ASIDE_SECONDS

    def end_aside(self, now: float) -> None:
        """Look again at those that have been aside for long enough."""
        for workspace in [name for name, until in self._aside.items() if until <= now]:
            del self._aside[workspace]
            queue = self._queue_of(workspace)
            queue.is_aside = False
            self._line_up(workspace, queue)

    def is_unknown(self, workspace: str) -> None:
        """The database knows no such workspace, so nothing of it can go."""
        self._ready.pop(workspace, None)
        self._waiting.discard(workspace)
        self._queues.pop(workspace, None)

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────

    def knows_limits(self, workspace: str, revision: int) -> bool:
        queue = self._queues.get(workspace)
        return queue is not None and queue.revision >= revision

    def limits_stored(self, workspace: str, revision: int, queued_max: int) -> None:
        """The database holds limits of this revision or a later one."""
        queue = self._queue_of(workspace)
        if revision > queue.revision:
            queue.revision, queue.queued_max = revision, queued_max
            # A raised limit may have opened slots.
            self.slot(workspace)

    def waiting(self, workspace: str, arriving: int, now: float) -> int | None:
        """How many wait; None when a turn has to count."""
        queue = self._queues.get(workspace)
        if queue is None or queue.counted_at is None:
            return None
        trusted = COUNT_TRUSTED_SECONDS
        if (queue.queued + arriving) * 2 >= queue.queued_max:
            trusted = min(trusted, queue.queued_max / COUNTED_PER_SECOND)
        return queue.queued if now - queue.counted_at <= trusted else None

    def _line_up(self, workspace: str, queue: WorkspaceQueue) -> None:
        if queue.has_work and not queue.is_full and not queue.is_aside:
            self._ready.setdefault(workspace)

    def _queue_of(self, workspace: str) -> WorkspaceQueue:
        queue = self._queues.get(workspace)
        if queue is None:
            if len(self._queues) >= QUEUES_KEPT_MAX:
                self._queues = {name: each for name, each in self._queues.items() if each.has_work}
            queue = self._queues[workspace] = WorkspaceQueue()
        return queue
