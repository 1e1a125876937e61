"""Which workspaces are worth a look: one lane per workspace, as levels, served in turn.

A lane is *ready* when something waits in it and its slots are not known to be in use. Ready lanes are served round
robin: those a claim has looked at go to the end of the line, so that ten thousand waiting in one workspace delay
nobody else. A full lane leaves the line until a slot may be free; so it costs nothing and blocks nobody. So does one
whose claim the database refuses, for a while: it is *aside*.

Everything here is a hint. What raises it: an enqueue, a freed slot, a word from another replica, and behind all of
these the poll, which names every workspace with work again.
"""

from collections.abc import Iterable

from services.dispatcher.core.items import LaneView

# How long a count of what waits is trusted, in seconds, while it is far from the limit.
COUNT_TRUSTED_SECONDS = 2.0
# A tenth of what an index gives. From half of the limit on, counting walks at most so many rows a second, since it is
# done under the workspace's lock: a hundred thousand are counted every 0.1 s, a thousand in about every turn. What this
# replica admits and claims in between is added to the count; what others do is not, so that several of them may pass
# the limit by what they admit in such a time, or refuse for so long what has found room.
COUNTED_PER_SECOND = 1_000_000
# How long a lane is left alone whose claim the database refuses, in seconds.
ASIDE_SECONDS = 30.0
# Beyond this, lanes in which nothing waits are forgotten; what was known of them is learnt again at their next item.
LANES_KEPT_MAX = 20_000


class Lane:
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


class Lanes:
    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
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
        lane = self._lane(workspace)
        lane.has_work = True
        self._waiting.add(workspace)
        self._line_up(workspace, lane)

    def slot(self, workspace: str) -> None:
        """A slot may be free there."""
        lane = self._lanes.get(workspace)
        if lane is not None:
            lane.is_full = False
            self._line_up(workspace, lane)

    def polled(self, workspaces: Iterable[str]) -> None:
        """All that have something waiting, as just read: look at each again, full or not."""
        for workspace in workspaces:
            lane = self._lane(workspace)
            lane.has_work, lane.is_full = True, False
            self._waiting.add(workspace)
            self._line_up(workspace, lane)

    def takes_newcomers(self, workspace: str) -> bool:
        """Whether a newcomer may go ahead at once: nobody is known to wait, and the slots are not known to be used."""
        lane = self._lanes.get(workspace)
        return lane is None or not (lane.has_work or lane.is_full)

    def take(self, count: int) -> list[str]:
        """The next lanes to look at; they go to the end of the line."""
        taken = [workspace for workspace, _ in zip(self._ready, range(count), strict=False)]
        for workspace in taken:
            del self._ready[workspace]
            self._ready[workspace] = None
        return taken

    def saw(self, view: LaneView, now: float) -> bool:
        """What a committed turn found. True when the lane has just come to capacity with work waiting."""
        lane = self._lane(view.workspace)
        lane.has_work = view.has_more
        if view.has_more:
            self._waiting.add(view.workspace)
        else:
            self._waiting.discard(view.workspace)
        lane.is_full = view.free <= view.taken
        if view.queued is not None:
            lane.queued, lane.counted_at = view.queued, now
        else:
            lane.queued = max(0, lane.queued + view.added)
        was_at_capacity = lane.is_at_capacity
        lane.is_at_capacity = lane.has_work and lane.is_full
        if lane.is_full or not lane.has_work:
            self._ready.pop(view.workspace, None)
        else:
            self._line_up(view.workspace, lane)
        return lane.is_at_capacity and not was_at_capacity

    def set_aside(self, workspace: str, now: float) -> None:
        """The database refuses to claim from it, and would refuse at once again."""
        lane = self._lane(workspace)
        lane.has_work = lane.is_aside = True
        self._waiting.add(workspace)
        self._ready.pop(workspace, None)
        self._aside.pop(workspace, None)
        self._aside[workspace] = now + ASIDE_SECONDS

    def end_aside(self, now: float) -> None:
        """Look again at those that have been aside for long enough."""
        for workspace in [name for name, until in self._aside.items() if until <= now]:
            del self._aside[workspace]
            lane = self._lane(workspace)
            lane.is_aside = False
            self._line_up(workspace, lane)

    def is_unknown(self, workspace: str) -> None:
        """The database knows no such workspace, so nothing of it can go."""
        self._ready.pop(workspace, None)
        self._waiting.discard(workspace)
        self._lanes.pop(workspace, None)

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────

    def knows_limits(self, workspace: str, revision: int) -> bool:
        lane = self._lanes.get(workspace)
        return lane is not None and lane.revision >= revision

    def limits_stored(self, workspace: str, revision: int, queued_max: int) -> None:
        """The database holds limits of this revision or a later one."""
        lane = self._lane(workspace)
        if revision > lane.revision:
            lane.revision, lane.queued_max = revision, queued_max
            # A raised limit may have opened slots.
            self.slot(workspace)

    def waiting(self, workspace: str, arriving: int, now: float) -> int | None:
        """How many wait; None when a turn has to count."""
        lane = self._lanes.get(workspace)
        if lane is None or lane.counted_at is None:
            return None
        trusted = COUNT_TRUSTED_SECONDS
        if (lane.queued + arriving) * 2 >= lane.queued_max:
            trusted = min(trusted, lane.queued_max / COUNTED_PER_SECOND)
        return lane.queued if now - lane.counted_at <= trusted else None

    def _line_up(self, workspace: str, lane: Lane) -> None:
        if lane.has_work and not lane.is_full and not lane.is_aside:
            self._ready.setdefault(workspace)

    def _lane(self, workspace: str) -> Lane:
        lane = self._lanes.get(workspace)
        if lane is None:
            if len(self._lanes) >= LANES_KEPT_MAX:
                self._lanes = {name: each for name, each in self._lanes.items() if each.has_work}
            lane = self._lanes[workspace] = Lane()
        return lane
