"""The turn loop: the one place where executions move.

    take what has gathered ─► decide each inbox ─► give ready work to runners ─► append all in one commit ─► act

Nothing is told to anybody before the commit; while it is under way, what arrives gathers for the next turn; while
much arrives, turns keep a little distance (`AdaptivePacer`). The database away: the same append is tried again, in
halves, until it is answered or the lease is lost. An append whose answer was lost is recognised by its own fences, one
per execution, so in halves as well.

Hazards: one bad execution must not hold up the rest. A decision that raises drops that execution alone; an append that
the database rejects for good is taken apart until the one to blame is found. What raises after the commit is the
settler's to contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import AdaptivePacer
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import COUNT_BUCKETS, counter, histogram
from services.coordinator.handler.assigning import Assigner
from services.coordinator.handler.carrier import Carrier
from services.coordinator.handler.held import Held
from services.coordinator.handler.move import Move
from services.coordinator.handler.ports import AppendRejected, Dispatch, Encode, Fence, Journal
from services.coordinator.handler.settling import Settler, note_broken

log = logger(__name__)

# Of one flush: beyond this a larger batch costs no less per execution and delays those behind it.
_EXECUTIONS_MAX: Final = 500
# Events of one flush. Results are up to 256 KiB each, and are written twice: what takes longer than the journal's
# connection waits would never be written.
_BYTES_MAX: Final = 8 * 1024 * 1024
_POLL_SECONDS: Final = 1.0
_NO_ROW: Final = Fence(0, 0)

_flush_size = histogram("coordinator_flush_executions", "Executions in one append.", buckets=COUNT_BUCKETS)
_flush_events = histogram("coordinator_flush_events", "Events in one append.", buckets=COUNT_BUCKETS)
_flush_seconds = histogram("coordinator_flush_seconds", "How long an append took.")
_flush_retries = counter("coordinator_flush_retries_total", "Appends that had to be repeated.")
_fenced = counter("coordinator_fenced_total", "Executions dropped because another holder has them.")


class TurnLoop:
    def __init__(
        self,
        *,
        carrier: Carrier,
        assigner: Assigner,
        settler: Settler,
        journal: Journal,
        dispatch: Dispatch,
        encode: Encode,
        clock: Clock,
    ) -> None:
        self._carrier = carrier
        self._assigner = assigner
        self._settler = settler
        self._journal = journal
        self._dispatch = dispatch
        self._encode = encode
        self._clock = clock
        self._pacer = AdaptivePacer(clock)
        self._is_leaving = False
        self._at_rest = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._carrier.level.wait(_POLL_SECONDS)
            self._at_rest.clear()
            # At least once per wake-up: new credit needs a turn without any input.
            await self._paced_turn()
            while self._carrier.dirty:
                await self._paced_turn()
            self._at_rest.set()

    async def hand_back_all(self) -> None:
        """Drain: what has arrived is journalled, nothing new is given out, then every lease goes back at once."""
        self._is_leaving = True
        self._carrier.level.set()
        self._at_rest.clear()
        await self._at_rest.wait()
        for held in list(self._carrier.held.values()):
            self._dispatch.released(held.execution_id, held.epoch, reason="DRAINING")
            self._carrier.drop(held)

    async def _paced_turn(self) -> None:
        await self._pacer.begin()
        await self.run_once()

    async def run_once(self) -> None:
        now = self._clock.epoch_ns() // 1_000
        moves = self._decide(now)
        if not self._assigner.is_idle and self._dispatch.may_start() and not self._is_leaving:
            self._assign(moves, now)
        if not moves:
            return
        written = await self._write([move for move in moves.values() if move.events])
        unmoved = [move for move in moves.values() if not move.events and not move.held.is_dropped]
        self._settler.settle([*written, *unmoved])
        self._pacer.carried(len(moves))

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(self, now: int) -> dict[Held, Move]:
        moves: dict[Held, Move] = {}
        dirty = self._carrier.dirty
        room = _BYTES_MAX
        while dirty and len(moves) < _EXECUTIONS_MAX and room > 0:
            held, _ = dirty.popitem(last=False)
            execution = held.execution
            if held.is_loading or held.is_dropped or execution is None:
                continue
            move = Move(held, execution, self._encode)
            try:
                room -= move.decide_inbox(now, room)
                if held.inbox:
                    # The rest of it goes behind the others.
                    dirty[held] = None
                if execution.ready:
                    self._assigner.enter(held, now, is_following=move.from_seq > 0)
            except Exception as failure:  # noqa: BLE001 - a bug of one execution is not the others'
                self._break(move, failure)
                continue
            moves[held] = move
        return moves

    def _assign(self, moves: dict[Held, Move], now: int) -> None:
        for held, given in self._assigner.give(now).items():
            assert held.execution is not None
            move = moves.get(held) or Move(held, held.execution, self._encode)
            try:
                if move.assign(given, now):
                    moves[held] = move
                    if move.has_failed_some:
                        # What follows from that may be ready now.
                        self._assigner.enter(held, now)
                        self._carrier.level.set()
                    continue
            except Exception as failure:  # noqa: BLE001 - as above
                moves.pop(held, None)
                self._break(move, failure)
            for each in given:
                each.session.give_back(1)

    def _break(self, move: Move, failure: Exception) -> None:
        """A bug: this execution goes back as failed, and after three such it is a dead letter; the rest goes on."""
        note_broken(move.held, failure)
        message = "the coordinator could not decide this execution; its log tells more"
        self._refuse(move, "INTERNAL", message, permanent=False)

    def _refuse(self, move: Move, reason: str, message: str, *, permanent: bool) -> None:
        held = move.held
        self._dispatch.released(
            held.execution_id, held.epoch, failed=True, permanent=permanent, reason=reason, message=message
        )
        self._lose(move)

    def _lose(self, move: Move) -> None:
        self._settler.give_back_places(move)
        self._carrier.drop(move.held)
        self._carrier.send_away(each.answer for each in move.inputs)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _write(self, moves: list[Move], backoff: Backoff | None = None) -> list[Move]:
        """Those that are in the journal now. The others have lost their lease, or wait to be loaded."""
        backoff = backoff or Backoff()
        written: list[Move] = []
        while moves := self._still_held(moves):
            try:
                refused = await self._append(moves)
            except AppendRejected as failure:
                if len(moves) > 1:
                    return written + await self._write_halves(moves, backoff)
                self._break(moves[0], failure)
                break
            except DependencyUnavailable as failure:
                _flush_retries.inc()
                log.warning("the journal is away", executions=len(moves), error=str(failure))
                await asyncio.sleep(backoff.next())
                if len(moves) > 1:
                    # It may have been too much for the time that an answer has.
                    return written + await self._write_halves(moves, backoff)
                continue
            backoff.reset()
            again = []
            for place, move in enumerate(moves):
                fence = refused.get(place)
                if fence is None or self._is_ours(move, fence):
                    written.append(move)
                elif self._is_passable(move, fence):
                    again.append(move)
                else:
                    self._refused(move, fence)
            moves = again
        return written

    async def _write_halves(self, moves: list[Move], backoff: Backoff) -> list[Move]:
        half = len(moves) // 2
        return [*await self._write(moves[:half], backoff), *await self._write(moves[half:], backoff)]

    async def _append(self, moves: Sequence[Move]) -> dict[int, Fence]:
        try:
            appends = [move.append() for move in moves]
        except Exception as failure:
            # One of them cannot be put into rows: it is found like one whose rows the database will not have.
            raise AppendRejected("an execution does not fit into its rows") from failure
        crash_point("coordinator.append.before")
        began = self._clock.monotonic()
        refused = await self._journal.append(appends)
        crash_point("coordinator.append.after")
        _flush_seconds.observe(self._clock.monotonic() - began)
        _flush_size.observe(len(appends))
        _flush_events.observe(sum(len(each.events) for each in appends))
        return dict(refused)

    def _still_held(self, moves: list[Move]) -> list[Move]:
        held = [move for move in moves if not move.held.is_dropped]
        if len(held) < len(moves):
            for move in moves:
                if move.held.is_dropped:
                    self._lose(move)
        return held

    @staticmethod
    def _is_ours(move: Move, fence: Fence) -> bool:
        """Written by an earlier try whose answer was lost."""
        return fence == (move.held.epoch, move.execution.seq)

    @staticmethod
    def _is_passable(move: Move, fence: Fence) -> bool:
        """What refused it was not yet to be seen: the next try tells. Only before its first append has an execution no
        row; one whose row is gone would be tried for ever, and hold up all others."""
        return fence == (move.held.epoch, move.from_seq) or (fence == _NO_ROW and move.from_seq == 0)

    def _refused(self, move: Move, fence: Fence) -> None:
        held = move.held
        self._settler.give_back_places(move)
        if move.from_seq == 0 and fence.epoch < held.epoch:
            # Not a first start after all: an earlier holder had begun. Read, adopt, and decide the inputs again.
            held.inbox = [*move.inputs[1:], *held.inbox]
            self._carrier.reload(held)
            return
        if fence == _NO_ROW:
            self._refuse(move, "JOURNAL_CORRUPT", "the rows of this execution are gone", permanent=True)
            return
        _fenced.inc()
        log.warning(
            "fenced: another holder goes on with it",
            execution_id=held.execution_id,
            epoch=held.epoch,
            present_epoch=fence.epoch,
        )
        self._lose(move)
