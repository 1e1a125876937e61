"""The parts that for_each@1 and repeat@1 have in common.

A loop begins like any control node: `start` reads its config and starts its items, which are work with the node and the
generation of the loop, and the iterations 1, 2, 3 and so on. Each outcome of an item says which item begins next, or
that the loop goes on (`core/loops.py`). The loop then succeeds, fails or waits, and the graph sees only that.

A list that is too large to be inline is in the output store. `ItemsRequested` makes it an obligation to read it, and
the loop starts when that is done (`handlers/storing.py`). An output that is too large to be inline is put into the
output store first. `LoopGathered` makes that an obligation, and the loop ends when the output is there.
"""

from abc import abstractmethod
from collections.abc import Sequence

from services.coordinator.core.controls.control import Control, InvalidConfig
from services.coordinator.core.events import ItemsRequested, LoopClosed, LoopGathered, LoopStarted
from services.coordinator.core.items import InvalidItems, LoopConfig, loop_config
from services.coordinator.core.loop_outputs import inline_output
from services.coordinator.core.loops import OUTPUT_BYTES_MAX, items_begin
from services.coordinator.core.results import json_fault
from services.coordinator.core.state import Work, WorkLoop, WorkState
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import OutputRef, Span


class LoopControl(Control):
    def begin(self, turn: Turn, work: Work) -> None:
        loop = turn.execution.loops.get(work.key)
        config = work.config or work.node.config
        if loop is not None:
            self._go_on(turn, loop)
        elif isinstance(config, OutputRef):
            turn.emit(ItemsRequested(turn.now, work.key, turn.run_of(work)))
        else:
            self.start(turn, work, _parsed(config))

    def _go_on(self, turn: Turn, loop: WorkLoop) -> None:
        if loop.failed is not None and not loop.continues_on_failure:
            fail_with_item(turn, loop, loop.failed)
        elif loop.output_bytes > OUTPUT_BYTES_MAX:
            finish(turn, loop, None)
        else:
            self.go_on(turn, loop)

    @abstractmethod
    def start(self, turn: Turn, work: Work, config: LoopConfig) -> None:
        """It starts the loop, or succeeds at once. It raises InvalidConfig before it emits anything."""

    @abstractmethod
    def go_on(self, turn: Turn, loop: WorkLoop) -> None:
        """No item is under way. The loop succeeds, fails or waits."""


def _parsed(config: bytes) -> LoopConfig:
    try:
        return loop_config(config)
    except InvalidItems as fault:
        raise InvalidConfig(str(fault)) from None


def start(
    turn: Turn,
    work: Work,
    *,
    count: int,
    parallel_max: int,
    continues_on_failure: bool = False,
    delay: Span = 0,
    items: Sequence[bytes] = (),
) -> None:
    loop = WorkLoop(work, count, parallel_max, continues_on_failure, delay)
    then = items_begin(loop, min(count, parallel_max))
    turn.emit(
        LoopStarted(turn.now, work.key, turn.run_of(work), count, parallel_max, continues_on_failure, delay, then)
    )
    # The events do not have them: a successor takes them from the config again.
    turn.execution.loops[work.key].items = items


def succeed(turn: Turn, loop: WorkLoop) -> None:
    """All items have their outcome. The output may have to be stored first."""
    output = inline_output(turn.execution, loop)
    if output is None:
        turn.emit(LoopGathered(turn.now, loop.work.key, turn.run_of(loop.work)))
    elif fault := json_fault(output):
        fail(turn, loop, "OUTPUT_NOT_JSON", fault)
    else:
        end(turn, loop)
        turn.succeed(loop.work, output)


def finish(turn: Turn, loop: WorkLoop, output: OutputRef | None) -> None:
    """The output is in the store. None: it is too large for it."""
    if output is None:
        message = f"the outputs of its items have over {OUTPUT_BYTES_MAX} bytes together"
        fail(turn, loop, "OUTPUT_TOO_LARGE", message)
    else:
        end(turn, loop)
        turn.succeed(loop.work, output)


def fail_with_item(turn: Turn, loop: WorkLoop, item: Work) -> None:
    error = None if item.run is None else item.run.error
    assert error is not None
    fail(turn, loop, error.type, f"iteration {item.key.iteration}: {error.message}")


def fail(turn: Turn, loop: WorkLoop, error_type: str, message: str) -> None:
    end(turn, loop)
    turn.fail(loop.work, error_type, message)


def end(turn: Turn, loop: WorkLoop) -> None:
    """Items that runners have are taken back, and nobody waits until they have stopped. Children that items wait for
    are cancelled."""
    for item in [item for item in loop.going.values() if item.state is WorkState.WAITING]:
        turn.cancel_run(item)
    going = loop.going.values()
    live = [item for item in going if item.state is WorkState.LIVE]
    stopped = tuple([item.key for item in live])
    cancelled = tuple([item.key for item in going if item.state is not WorkState.LIVE])
    turn.emit(LoopClosed(turn.now, loop.work.key, turn.run_of(loop.work), cancelled, stopped))
    for item in live:
        turn.cancel_run(item)
