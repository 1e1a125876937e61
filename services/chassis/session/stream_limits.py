"""Limits the streams of a server and of each caller, and gives every stream its room (room.py).

The server cannot end a stream that its holder does not read: gRPC keeps it, with its buffers, until the holder
reads or cancels. So unread streams count as sessions, and a caller with `unread_max` of them gets no further one.
The streams of one key are limited, and those of all keys of a workspace to its share (shares.py), so that nobody can
take all sessions of a server. Some are kept for our own services. Refused streams may stay open unread too, and are
counted apart.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.shares import Shares
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.session.room import CallerRoom, StreamRoom


@dataclass(frozen=True, slots=True)
class SessionLimits:
    # Streams at once, attached or not. A holder that is refused uses another replica.
    sessions_max: int = 5_000
    # Streams of one key, which is for the runners of one workspace. Our own services have no such limit, here and
    # below, because the operator decides how many there are.
    key_sessions_max: int = 500
    # Streams of all keys. Of these a workspace alone gets half, however many keys it has.
    keys_sessions_max: int = 4_000
    # Refused streams of one key that are still open. Beyond it a stream ends with a status and not with a fault,
    # because a fault has to be read.
    key_refused_max: int = 100
    # Unread streams of one caller that were cut and are still open. Each holds up to 8 MB.
    unread_max: int = 20
    # Bytes of unanswered reports on one stream, then on all streams of one key. The first is enough for 4,000 reports
    # of 16 KiB; with larger ones a stream is as slow as their commits.
    stream_bytes_max: int = 64 * 1024 * 1024
    key_bytes_max: int = 256 * 1024 * 1024
    # Leases that all streams of one key may name as held: two hundred runners with a thousand places each.
    key_leases_max: int = 200_000


class StreamLimits:
    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        # Streams by caller: served, cut because they were not read, and refused.
        self._open: Counter[Identity] = Counter()
        self._unread: Counter[Identity] = Counter()
        self._refused: Counter[Identity] = Counter()
        # The streams of callers with a key that are served or unread.
        self._shares = Shares(limits.keys_sessions_max)
        # A room lives as long as its sessions. Those that are over live on while their reports are unanswered.
        self._rooms: WeakValueDictionary[Identity, CallerRoom] = WeakValueDictionary()

    def open(self, who: Identity) -> tuple[str, str] | None:
        """Count a further stream of the caller, or return why there is none: reason and message."""
        limits = self._limits
        if self._unread[who] >= limits.unread_max:
            return "NOT_READING", "cancel the streams that are not read before another is opened"
        if _is_key(who) and self._open[who] + self._unread[who] >= limits.key_sessions_max:
            return (
                "KEY_SESSIONS_EXCEEDED",
                f"this key has {limits.key_sessions_max} sessions here: end some, or use another key",
            )
        if self._open.total() + self._unread.total() >= limits.sessions_max:
            return "TOO_MANY_SESSIONS", "attach to another replica"
        if _is_key(who) and not self._shares.take(who.tenant):
            return "TOO_MANY_SESSIONS", "the keys of this workspace have their share here: attach to another replica"
        self._open[who] += 1
        return None

    def closed(self, who: Identity, context: Any, *, is_unread: bool) -> None:
        _take_one(self._open, who)
        if is_unread:
            _count_until_done(self._unread, who, context, self._give_back)
        else:
            self._give_back(who)

    def _give_back(self, who: Identity) -> None:
        if _is_key(who):
            self._shares.give_back(who.tenant)

    def refused(self, who: Identity, context: Any) -> None:
        if _is_key(who) and self._refused[who] >= self._limits.key_refused_max:
            raise Refusal("KEY_SESSIONS_EXCEEDED", "cancel the streams that were refused before another is opened")
        _count_until_done(self._refused, who, context)

    def room(self, who: Identity) -> StreamRoom:
        """The room of a new stream of this caller."""
        room = self._rooms.get(who)
        if room is None:
            limits = self._limits
            bounds = (limits.key_bytes_max, limits.key_leases_max) if _is_key(who) else ()
            room = self._rooms[who] = CallerRoom(*bounds)
        return StreamRoom(room, self._limits.stream_bytes_max)


def _is_key(who: Identity) -> bool:
    """True for every caller but our own services."""
    return who.kind is not CallerKind.SERVICE


def _take_one(counts: Counter[Identity], who: Identity) -> None:
    counts[who] -= 1
    if not counts[who]:
        del counts[who]


def _count_until_done(
    counts: Counter[Identity], who: Identity, context: Any, then: Callable[[Identity], None] = lambda _: None
) -> None:
    """Count the stream until gRPC is done with it. That is not before its last write has ended."""
    counts[who] += 1

    def done(_: Any) -> None:
        _take_one(counts, who)
        then(who)

    context.add_done_callback(done)
