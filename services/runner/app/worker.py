"""The worker takes grants, runs a bounded number of them at once, and reports every outcome.

A run is in one of three places: the queue (granted, not begun), the going set (with a task of its own), or the holder's
unacknowledged reports. Short modules have no task: they run where the grant is taken, a bounded number in each turn.

Modules run elsewhere (`module_loop.py`, `module_threads.py`), so that none of them can keep this loop from the session
and its beats. When an async module stalls the loop of the modules, the worker says so, takes no more work, and hands
back what has not begun there. Nothing can stop such a module. If it never ends, the worker fails its run, hands the
others back, and gives up; then the process ends.

A run whose templates are not plain waits in the rendering queue for a child of this process. Its time does not begin
while it waits, and after 2 s it is handed back, so that the templates of others cost it no attempt.

Every granted run is reported: one guard stands around the whole attempt, and everything that is raised in it becomes a
failure of the run, except our own stop. A run without a report would be held for as long as this process lives.

Hazards: nothing begins past the self-fence. A queue that waits behind long work is handed back, because another runner
may be idle. A run that was taken back is stopped and not reported: the report would be refused.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import gauge
from services.chassis.telemetry.tracing import TraceContext, parse_traceparent
from services.rendering import Rendering, WaitedTooLong
from services.runner.app.attempt import (
    Attempt,
    Reading,
    call,
    call_inline,
    failure_of,
    is_small,
    kept_outputs,
    prepare,
    prepare_and_call_inline,
    read,
    stored,
    task_name,
    with_input,
)
from services.runner.app.module_loop import LOOK_SECONDS, LoopStalled, ModuleLoop
from services.runner.app.module_threads import ModuleThreads
from services.runner.app.ports import Holder, Outputs
from services.runner.app.run_reports import RunReports, emit_run, failure_around, span_of
from services.runner.app.turns import decided
from services.runner.core.giving_way import gives_way_after
from services.runner.core.job import AttemptOutcome, Job, News, StoredOutput, Succeeded
from services.runner.core.untrusted import clamp_fraction, clamp_text
from services.runner.core.window import SPAN_SECONDS, Window
from windlass.sdk import Context, Module, Registry, TransientError
from windlass.sdk.context import MESSAGE_CHARACTERS_MAX

log = logger(__name__)

_runs_going = gauge("runner_runs_going", "Runs that have begun and are not over.")
_module_loop_stalled = gauge(
    "runner_module_loop_stalled_seconds",
    "For how long the event loop of the async modules has not answered, from 1 s on.",
)
_threads_abandoned = gauge(
    "runner_threads_abandoned", "Plain functions that work on although their run is over; each costs a place."
)

# Short modules run on the event loop. After this number of them the loop gets a turn, so that beats stay in time.
INLINE_PER_TURN = 100
# A granted run that has waited longer behind others is handed back: another runner may be idle.
QUEUE_SECONDS_MAX = 1.0
# The same limit for the rendering queue. Both limits and the periods of tending add up to less than the 5 s after which
# a coordinator considers a run with a short timeout lost.
RENDERING_SECONDS_MAX = 2.0
TEND_SECONDS = LOOK_SECONDS
# The worker gives up when the loop of the modules has been stalled for so long: as many terms of a run's lease.
STALLED_TERMS_MAX = 4

_RENDER_ONLY = Module("$render", lambda _ctx, _inputs, config: config, idempotent=True, is_async=False, inline=True)
_RENDER_ALL = Module(
    "$render_all",
    lambda _ctx, inputs, config: {"config": config, "inputs": inputs},
    idempotent=True,
    is_async=False,
    inline=True,
)


@dataclass(slots=True)
class Going:
    """A run with a task of its own."""

    job: Job
    task: asyncio.Task[None]
    start_ns: int
    # Monotonic seconds.
    began: float
    context: Context | None = None
    # The heartbeats already sent, by coordinator. Any of them may hold the execution, now or after another has died.
    heartbeats_told: dict[str, int] = field(default_factory=dict)


class Worker:
    """Runs jobs for one holder."""

    def __init__(
        self,
        registry: Registry,
        rendering: Rendering,
        outputs: Outputs,
        holder: Holder,
        clock: Clock,
        concurrency: int,
        stalled_seconds_max: float,
        module_loop: ModuleLoop | None = None,
    ) -> None:
        """`stalled_seconds_max`: the worker gives up when the loop of the modules has been stalled for so long."""
        self._registry = registry
        self._rendering = rendering
        self._outputs = outputs
        self._holder = holder
        self._reports = RunReports(holder, clock)
        self._clock = clock
        self._concurrency = concurrency
        self._window = Window(concurrency)
        self._queue: deque[tuple[float, Job]] = deque()
        self._going: dict[str, Going] = {}
        self._threads = ModuleThreads()
        self._threads.on_return = self._turn_later
        self._module_loop = module_loop or ModuleLoop()
        self._stalled_seconds_max = stalled_seconds_max
        self._is_stalled = False
        self.gave_up = asyncio.Event()
        self._has_turn = False
        self._was_wedged = False

    @property
    def going(self) -> int:
        """Runs that have begun and are not over."""
        return len(self._going)

    @property
    def is_wedged(self) -> bool:
        """True when abandoned threads hold every place, so that nothing begins until one of them returns."""
        return self._threads.abandoned >= self._concurrency

    def can_work(self) -> bool:
        """True when new work can arrive and begin. The health service answers with it."""
        return self._holder.may_start() and not self.is_wedged and not self._is_stalled

    def take(self, jobs: Sequence[Job]) -> None:
        """New grants."""
        now = self._clock.monotonic()
        self._queue.extend((now, job) for job in jobs)
        self._turn()

    def drop(self, run_ids: Sequence[str]) -> None:
        """Stop runs whose leases were taken back, without a report."""
        self._take_back(run_ids, lambda _job, _start_ns: None)

    def stop(self, run_ids: Sequence[str]) -> None:
        """Stop runs and report each one that has stopped, because its execution waits for that.

        A plain function is only asked to stop, and its thread is abandoned."""
        self._take_back(run_ids, self._reports.stopped)

    def _take_back(self, run_ids: Sequence[str], then: Callable[[Job, int], None]) -> None:
        gone = set(run_ids)
        queued = [job for _, job in self._queue if job.run_id in gone]
        self._queue = deque(entry for entry in self._queue if entry[1].run_id not in gone)
        for job in queued:
            then(job, self._clock.epoch_ns())
        for going in [each for run_id, each in self._going.items() if run_id in gone]:
            self._stop_then(going, then)

    def _stop_then(self, going: Going, then: Callable[[Job, int], None]) -> None:
        going.task.add_done_callback(lambda _task: then(going.job, going.start_ns))
        self._stop(going)

    def drop_all(self) -> None:
        """Stop everything: the holder's instance was ended, and its leases with it."""
        self._queue.clear()
        for going in list(self._going.values()):
            self._stop(going)

    def resume(self) -> None:
        """Begin what was granted: the self-fence is lifted."""
        self._turn()

    def drain(self) -> None:
        """Hand back what has not begun."""
        self._hand_back("DRAINING")

    def hand_back_going(self) -> None:
        """Stop what is still going at the end of a drain. Other runners begin it again; no attempt is charged."""
        for going in list(self._going.values()):
            self._stop(going)
            self._released_going("DRAINING", going)

    def _released_going(self, reason: str, going: Going) -> None:
        # A run without a context still waits for its outputs or for the rendering queue.
        context = going.context
        cursor = b"" if context is None else context.told_cursor
        has_begun = context is not None
        self._reports.released(going.job, reason, going.start_ns, may_have_begun=has_begun, cursor=cursor)

    def close(self) -> None:
        """Begin nothing more. Blocks for a moment, so that async modules can end."""
        self._module_loop.close()
        self._module_loop.join()

    async def run(self) -> None:
        """Tend the worker at a fixed period."""
        while True:
            await self._clock.sleep(TEND_SECONDS)
            self.tend()

    def tend(self) -> None:
        """Narrow the window, give way to work that waits, hand back what has waited too long, and log that no run can
        begin."""
        now = self._clock.monotonic()
        _runs_going.set(len(self._going))
        _threads_abandoned.set(self._threads.abandoned)
        self._look_at_module_loop(now)
        self._want(now)
        if self.is_wedged and not self._was_wedged:
            log.error("plain functions that do not return hold every place", places=self._concurrency)
        self._was_wedged = self.is_wedged
        self._rendering.queue.send_away(now - RENDERING_SECONDS_MAX)
        if self._holder.has_demand():
            self._give_way(now)
        if self._holder.may_start():
            self._hand_back("QUEUED_TOO_LONG", before=now - QUEUE_SECONDS_MAX)

    def _give_way(self, now: float) -> None:
        """Stop the longest run that can go on elsewhere from its cursor, if no place is free. It is handed back when it
        has stopped."""
        going = next((each for each in self._going.values() if self._may_give_way(each, now)), None)
        if going is not None:
            self._stop_then(going, lambda _job, _start_ns: self._released_going("GAVE_WAY", going))

    def _may_give_way(self, going: Going, now: float) -> bool:
        job = going.job
        module = self._registry.get(job.module)
        used, places = len(self._going) + self._threads.abandoned, job.places_max or self._concurrency
        return (
            going.context is not None
            and module is not None
            and module.resumable
            and used >= places
            and now - going.began >= gives_way_after(job.attempt, is_reserve_taken=used > places)
        )

    def _look_at_module_loop(self, now: float) -> None:
        if self.gave_up.is_set():
            return
        stalled_seconds = self._module_loop.stalled_seconds(now)
        _module_loop_stalled.set(stalled_seconds)
        was_stalled, self._is_stalled = self._is_stalled, stalled_seconds > 0
        if self._is_stalled:
            blocker = self._module_loop.blocker()
            if not was_stalled:
                log.error(
                    "an async module blocks the event loop of all of them", task=blocker.task, place=blocker.place
                )
            self._module_loop.send_away()
            if stalled_seconds >= self._stalled_seconds_max:
                self._give_up(blocker.task)
        elif was_stalled:
            log.warning("the event loop of the async modules goes on")

    def _give_up(self, blocker: str) -> None:
        """Fail the run that blocks the loop of the modules, and hand the others on it back. The owner ends the process,
        since nothing else ends that module."""
        log.error("the event loop of the async modules is given up", task=blocker)
        for going in list(self._going.values()):
            module = self._registry.get(going.job.module)
            if module is None or not module.is_async:
                continue
            self._stop(going)
            if task_name(going.job) == blocker:
                message = f"it blocked the event loop of its runner for {self._stalled_seconds_max:g} s"
                outcome = failure_of(TransientError(message, type="LOOP_BLOCKED"))
                self._reports.ended(going.job, outcome, going.start_ns, None, None)
            else:
                self._released_going("LOOP_STALLED", going)
        self._module_loop.close()
        self.gave_up.set()

    def news(self, coordinator: str, *, anew: bool = False) -> list[News]:
        """The news of going runs that this coordinator has not been told yet; all of it when `anew` is set."""
        news = []
        for going in self._going.values():
            context = going.context
            if context is None or (not anew and going.heartbeats_told.get(coordinator) == context.heartbeats):
                continue
            going.heartbeats_told[coordinator] = context.heartbeats
            job, fraction = going.job, clamp_fraction(context.progress)
            message = clamp_text(context.message, MESSAGE_CHARACTERS_MAX)
            news.append(News(job.run_id, job.epoch, going.start_ns, fraction, message, context.told_cursor))
        return news

    def _want(self, now: float) -> None:
        """Ask for as many leases as there will be places. An abandoned thread holds one. A stalled loop of the modules
        holds all."""
        capacity = 0 if self._is_stalled else self._window.capacity(now) - self._threads.abandoned
        self._holder.set_capacity(max(0, capacity))

    def _has_place(self) -> bool:
        return len(self._going) + self._threads.abandoned < self._concurrency

    def _has_place_for(self, job: Job) -> bool:
        """False when only places of the reserve are free, and a run of this workspace is going already."""
        if not job.places_max or len(self._going) + self._threads.abandoned < job.places_max:
            return True
        module = self._registry.get(job.module)
        if module is not None and module.inline and not job.has_templates:
            # It is done at once and takes no place.
            return True
        return all(going.job.workspace != job.workspace for going in self._going.values())

    def _turn(self) -> None:
        begun_inline = 0
        held_up: list[tuple[float, Job]] = []
        while self._queue and self._has_place() and self._holder.may_start():
            if begun_inline == INLINE_PER_TURN:
                self._turn_later()
                break
            since, job = self._queue.popleft()
            if not self._has_place_for(job):
                held_up.append((since, job))
                continue
            module = self._module_of(job)
            if module is None:
                self._reports.released(job, "UNKNOWN_MODULE")
            elif module.is_async and self._is_stalled:
                self._reports.released(job, "LOOP_STALLED")
            elif module.inline and not _has_kept(job) and not job.until:
                begun_inline += self._run_inline(job, module)
            else:
                self._begin(job, module)
        self._queue.extendleft(reversed(held_up))
        if begun_inline:
            now = self._clock.monotonic()
            self._window.finished(now, begun_inline)
            self._want(now)

    def _module_of(self, job: Job) -> Module | None:
        if job.is_render_only or job.is_render_all:
            return _RENDER_ALL if job.is_render_all else _RENDER_ONLY
        return self._registry.get(job.module)

    def _turn_later(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._later)

    def _later(self) -> None:
        self._has_turn = False
        self._turn()

    def _run_inline(self, job: Job, module: Module) -> bool:
        """Do the run on the event loop. False when the child has to render for it, so that it got a task."""
        start_ns = self._clock.epoch_ns()
        span = span_of(job)
        attempt: Attempt | None = None
        try:
            reading = read(job, module)
            if not reading.is_plain:
                self._begin(job, module, reading)
                return False
            attempt = prepare(job, module, reading, self._rendering, {}, span.header() if span else "")
            outcome = call_inline(attempt)
        except BaseException as error:  # noqa: BLE001 - everything that is raised is an outcome of this run
            outcome = failure_around(job, error)
        if is_small(outcome):
            self._reports.ended(job, outcome, start_ns, attempt, span)
        else:
            self._spawn(job, lambda going: self._keep(going, outcome, attempt, span), start_ns)
        return True

    def _begin(self, job: Job, module: Module, reading: Reading | None = None) -> None:
        self._spawn(job, lambda going: self._run(going, module, reading), self._clock.epoch_ns())

    def _spawn(self, job: Job, work: Callable[[Going], Awaitable[None]], start_ns: int) -> None:
        async def guarded() -> None:
            await asyncio.sleep(0)
            going = self._going[job.run_id]
            try:
                await work(going)
            finally:
                if self._is_ours(going):
                    del self._going[job.run_id]
                self._turn_later()

        task = asyncio.create_task(guarded(), name=task_name(job))
        self._going[job.run_id] = Going(job, task, start_ns, self._clock.monotonic())

    def _is_ours(self, going: Going) -> bool:
        """False once the worker has stopped it."""
        return self._going.get(going.job.run_id) is going

    async def _run(self, going: Going, module: Module, reading: Reading | None) -> None:
        job = going.job
        span = span_of(job)
        attempt: Attempt | None = None
        try:
            job = going.job = await with_input(job, self._outputs)
            kept = await kept_outputs(job, self._outputs)
            reading = reading or read(job, module)
            header = span.header() if span else ""
            prepared = partial(prepare, job, module, reading, self._rendering, kept, header)
            attempt, outcome = await self._prepared(job.workspace, module, reading, prepared)
            going.context = attempt.context
            outcome = outcome or await call(attempt, self._threads, self._module_loop)
            if job.until and isinstance(outcome, Succeeded):
                outcome = await decided(job, outcome, self._rendering, kept)
        except (WaitedTooLong, LoopStalled) as waited:
            if self._is_ours(going):
                reason = "LOOP_STALLED" if isinstance(waited, LoopStalled) else "RENDERER_BUSY"
                self._reports.released(job, reason, going.start_ns)
            return
        except BaseException as error:
            if not self._is_ours(going):
                raise
            outcome = failure_around(job, error)
        await self._keep(going, outcome, attempt, span)
        now = self._clock.monotonic()
        if now - going.began < SPAN_SECONDS:
            self._window.finished(now, 1)
        self._want(now)

    async def _prepared(
        self, workspace: str, module: Module, reading: Reading, prepared: Callable[[], Attempt]
    ) -> tuple[Attempt, AttemptOutcome | None]:
        """The attempt, with its outcome when the rendering queue has called the module too. Raises WaitedTooLong."""
        if reading.is_plain:
            return prepared(), None
        queue, now = self._rendering.queue, self._clock.monotonic()
        if module.inline:
            return await queue.call(workspace, now, partial(prepare_and_call_inline, prepared))
        return await queue.call(workspace, now, prepared), None

    async def _keep(
        self, going: Going, outcome: AttemptOutcome, attempt: Attempt | None, span: TraceContext | None
    ) -> None:
        """Move a large output to the store, and end the run."""
        try:
            outcome = await stored(outcome, self._outputs, going.job.lease)
        except OSError as error:
            outcome = failure_of(TransientError(f"the output cannot be kept: {error.strerror}", type="OUTPUT_STORE"))
            if attempt is not None:
                # What the module called has answered.
                attempt.context.called = ""
        except BaseException as error:
            if not self._is_ours(going):
                raise
            outcome = failure_around(going.job, error)
        # A module may catch its cancellation and return; then nothing is reported.
        if self._is_ours(going):
            self._reports.ended(going.job, outcome, going.start_ns, attempt, span)

    def _stop(self, going: Going) -> None:
        if going.context is not None:
            going.context.cancelled = True
            span = parse_traceparent(going.context.traceparent)
            if span is not None:
                # The module's own calls may have spans below this one.
                emit_run(span, going.job, going.start_ns, self._clock.epoch_ns(), "stopped")
        self._going.pop(going.job.run_id, None)
        going.task.cancel()

    def _hand_back(self, reason: str, before: float = math.inf) -> None:
        """Hand back what has come before this time and has not begun."""
        while self._queue and self._queue[0][0] < before:
            _, job = self._queue.popleft()
            self._reports.released(job, reason)


def _has_kept(job: Job) -> bool:
    """True when the job reads something that has to be fetched."""
    if not job.has_templates:
        return False
    return any(isinstance(value, StoredOutput) for value in (job.execution_input, *job.outputs.values()))
