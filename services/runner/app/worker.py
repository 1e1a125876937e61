"""The worker: takes grants, runs as many at once as it may, reports every outcome.

A run whose templates are not plain waits in the queue for the child of this process that renders such. Its time has not
begun while it waits, and after a while it is handed back: the templates of others cost it no attempt.

A run lives in one of three places: the queue (granted, not begun), the going set (a task of its own), or the holder's
unacknowledged reports. Short modules have no task: they run where the grant is taken, a bounded number at a turn.

Whatever is granted is reported: one guard stands around the whole of an attempt, and all that is raised in it, our own
stop of the run excepted, becomes its failure. A run that went unreported would be held as long as this process lives.

Hazards: nothing begins past the self-fence; a queue that waits behind long work is handed back, because another runner
may be idle; a run that was taken back is stopped and gives no outcome any more, it would only be refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge
from services.chassis.telemetry.tracing import TraceContext, parse_traceparent
from services.runner.app.attempt import (
    Attempt,
    Outputs,
    Reading,
    call,
    call_inline,
    failure_of,
    is_small,
    prepare,
    prepare_and_call_inline,
    read,
    stored,
)
from services.runner.app.module_threads import ModuleThreads
from services.runner.app.rendering import Rendering, WaitedTooLong
from services.runner.app.spans import emit_run, span_of
from services.runner.core.failures import ErrorClass, Failure
from services.runner.core.job import (
    Ended,
    Job,
    News,
    Outcome,
    OutputMissing,
    OutputRef,
    Released,
    Stopped,
    Succeeded,
)
from services.runner.core.untrusted import clamp_cost, clamp_fraction, clamp_text
from services.runner.core.window import Window
from windlass.sdk import Context, Module, ModuleError, Registry, TransientError
from windlass.sdk.context import MESSAGE_CHARACTERS_MAX

log = logger(__name__)

_runs_ended = counter("runner_runs_ended_total", "Runs reported, by what became of them.", ["outcome"])
_runs_going = gauge("runner_runs_going", "Runs begun and not over.")
_threads_abandoned = gauge(
    "runner_threads_abandoned", "Plain functions that work on although their run is over; each costs a place."
)
_ended = {kind: _runs_ended.labels(kind.__name__.lower()) for kind in (Succeeded, Failure, Released, Stopped)}

# Short modules run on the event loop: after so many of them the loop gets a turn, so that beats stay in time.
INLINE_PER_TURN = 100
# A granted run that has waited so long behind others goes back: somebody else may have nothing to do.
QUEUE_SECONDS_MAX = 1.0
# The same for one that waits for the child that renders. With the queue and a tender's periods it is less than the 5 s
# after which a coordinator takes a run whose node's timeout is short for lost.
RENDERING_SECONDS_MAX = 2.0

_RENDER_ONLY = Module(
    "$render",
    lambda _ctx, _inputs, config: config,
    idempotent=True,
    is_async=False,
    inline=True,
    raw_config=frozenset(),
)


class Holder(Protocol):
    """The lease session, as the worker needs it."""

    def may_start(self) -> bool: ...

    def set_capacity(self, capacity: int, /) -> None: ...

    def report(self, ended: Ended, /) -> None: ...


@dataclass(slots=True)
class Going:
    """A run with a task of its own."""

    job: Job
    task: asyncio.Task[None]
    start_ns: int
    context: Context | None = None
    # By coordinator: any of them may carry the execution, now or after the death of another.
    heartbeats_told: dict[str, int] = field(default_factory=dict)


class Worker:
    """Runs jobs for one holder."""

    def __init__(
        self,
        *,
        registry: Registry,
        rendering: Rendering,
        outputs: Outputs,
        holder: Holder,
        clock: Clock,
        concurrency: int,
    ) -> None:
        self._registry = registry
        self._rendering = rendering
        self._outputs = outputs
        self._holder = holder
        self._clock = clock
        self._concurrency = concurrency
        self._window = Window(concurrency)
        self._queue: deque[tuple[float, Job]] = deque()
        self._going: dict[str, Going] = {}
        self._threads = ModuleThreads()
        self._threads.on_return = self._turn_later
        self._has_turn = False
        self._is_draining = False
        self._was_wedged = False

    @property
    def going(self) -> int:
        """Runs begun and not over."""
        return len(self._going)

    @property
    def is_wedged(self) -> bool:
        """Every place is held by a plain function that does not return: nothing can begin until one does, and perhaps
        none ever will."""
        return self._threads.abandoned >= self._concurrency

    def can_work(self) -> bool:
        """What its health says: whether new work can come and be begun."""
        return self._holder.may_start() and not self.is_wedged

    def take(self, jobs: Sequence[Job]) -> None:
        """New grants."""
        now = self._clock.monotonic()
        self._queue.extend((now, job) for job in jobs)
        self._turn()

    def drop(self, run_ids: Sequence[str]) -> None:
        """Leases taken back: stop that work and say nothing."""
        self._take_back(run_ids, lambda _job, _start_ns: None)

    def stop(self, run_ids: Sequence[str]) -> None:
        """The same, for one who waits to hear that the work has stopped: said of each once it has. A plain function is
        only told to, and given up."""
        self._take_back(run_ids, self._say_stopped)

    def _take_back(self, run_ids: Sequence[str], then: Callable[[Job, int], None]) -> None:
        gone = set(run_ids)
        queued = [job for _, job in self._queue if job.run_id in gone]
        self._queue = deque(entry for entry in self._queue if entry[1].run_id not in gone)
        for job in queued:
            then(job, self._clock.epoch_ns())
        for run_id in gone:
            going = self._going.get(run_id)
            if going is not None:
                job, start_ns = going.job, going.start_ns
                going.task.add_done_callback(lambda _, job=job, start_ns=start_ns: then(job, start_ns))  # type: ignore[misc]
                self._stop(going)

    def _say_stopped(self, job: Job, start_ns: int) -> None:
        self._report(Ended(job, Stopped(), start_ns, self._clock.epoch_ns()))

    def drop_all(self) -> None:
        """The holder's instance was ended: none of its leases is ours any more."""
        self._queue.clear()
        for going in list(self._going.values()):
            self._stop(going)

    def resume(self) -> None:
        """The self-fence is lifted: what was granted may begin."""
        self._turn()

    def drain(self) -> None:
        """Begin nothing more; hand back what has not begun."""
        self._is_draining = True
        self._hand_back("DRAINING")

    def hand_back_going(self, reason: str) -> None:
        """Give up what is still going at the end of a drain: it goes elsewhere at once, no attempt is charged."""
        for going in list(self._going.values()):
            self._stop(going)
            # Without a context it waits: for its outputs, or in the queue for the child that renders.
            released = Released(reason, may_have_begun=going.context is not None)
            self._report(Ended(going.job, released, going.start_ns, self._clock.epoch_ns()))

    def tend(self) -> None:
        """Once a second or so: narrow the window, hand back what waits behind long work or slow templates, say when
        none can begin."""
        now = self._clock.monotonic()
        _runs_going.set(len(self._going))
        _threads_abandoned.set(self._threads.abandoned)
        self._want(now)
        if self.is_wedged and not self._was_wedged:
            log.error("plain functions that do not return hold every place", places=self._concurrency)
        self._was_wedged = self.is_wedged
        self._rendering.queue.send_away(now - RENDERING_SECONDS_MAX)
        if self._queue and self._queue[0][0] < now - QUEUE_SECONDS_MAX and self._holder.may_start():
            self._hand_back("QUEUED_TOO_LONG")

    def news(self, coordinator: str, *, anew: bool = False) -> list[News]:
        """Of the runs that are going, what it has not been told yet; `anew`: what it was told counts for nothing."""
        told = []
        for going in self._going.values():
            context = going.context
            if context is None:
                continue
            if not anew and going.heartbeats_told.get(coordinator) == context.heartbeats:
                continue
            going.heartbeats_told[coordinator] = context.heartbeats
            told.append(
                News(
                    going.job.run_id,
                    going.job.epoch,
                    going.start_ns,
                    clamp_fraction(context.progress),
                    clamp_text(context.message, MESSAGE_CHARACTERS_MAX),
                    context.told_cursor,
                )
            )
        return told

    def _want(self, now: float) -> None:
        """As many leases as there will be places for; an abandoned thread has one."""
        self._holder.set_capacity(max(0, self._window.capacity(now) - self._threads.abandoned))

    def _has_place(self) -> bool:
        return len(self._going) + self._threads.abandoned < self._concurrency

    def _turn(self) -> None:
        begun_inline = 0
        while self._queue and self._has_place() and self._holder.may_start():
            if begun_inline == INLINE_PER_TURN:
                self._turn_later()
                break
            _, job = self._queue.popleft()
            module = _RENDER_ONLY if job.is_render_only else self._registry.get(job.module)
            if module is None:
                now_ns = self._clock.epoch_ns()
                self._report(Ended(job, Released("UNKNOWN_MODULE", may_have_begun=False), now_ns, now_ns))
            elif module.inline and not _has_kept(job):
                begun_inline += self._run_inline(job, module)
            else:
                self._begin(job, module)
        if begun_inline:
            now = self._clock.monotonic()
            self._window.finished(now, begun_inline)
            self._want(now)

    def _turn_later(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._later)

    def _later(self) -> None:
        self._has_turn = False
        self._turn()

    def _run_inline(self, job: Job, module: Module) -> bool:
        """False: something of it is to be rendered elsewhere, so it has a task of its own."""
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
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is an outcome of this run
            outcome = _failure_of(job, error)
        if is_small(outcome):
            self._end(job, outcome, start_ns, attempt, span)
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

        self._going[job.run_id] = Going(
            job, asyncio.create_task(guarded(), name=f"run {job.run_id}"), start_ns
        )

    def _is_ours(self, going: Going) -> bool:
        """False once we have stopped it."""
        return self._going.get(going.job.run_id) is going

    async def _run(self, going: Going, module: Module, reading: Reading | None) -> None:
        job = going.job
        span = span_of(job)
        attempt: Attempt | None = None
        try:
            loaded = await self._load(job)
            reading = reading or read(job, module)
            given = job, module, reading, self._rendering, loaded, span.header() if span else ""
            attempt, outcome = await self._prepared(module, reading, given)
            going.context = attempt.context
            outcome = outcome or await call(attempt, self._threads)
        except WaitedTooLong:
            if self._is_ours(going):
                released = Released("RENDERER_BUSY", may_have_begun=False)
                self._report(Ended(job, released, going.start_ns, self._clock.epoch_ns()))
            return
        except BaseException as error:
            if not self._is_ours(going):
                raise
            outcome = _failure_of(job, error)
        await self._keep(going, outcome, attempt, span)
        now = self._clock.monotonic()
        self._window.finished(now, 1)
        self._want(now)

    async def _prepared(
        self, module: Module, reading: Reading, given: tuple[Any, ...]
    ) -> tuple[Attempt, Outcome | None]:
        """The attempt, and its outcome when that was no more work. Raises WaitedTooLong."""
        if reading.is_plain:
            return prepare(*given), None
        queue, now = self._rendering.queue, self._clock.monotonic()
        if module.inline:
            done: tuple[Attempt, Outcome] = await queue.call(now, prepare_and_call_inline, *given)
            return done
        return await queue.call(now, prepare, *given), None

    async def _load(self, job: Job) -> dict[str, bytes]:
        refs = {node: value for node, value in job.outputs.items() if isinstance(value, OutputRef)}
        try:
            return {node: await self._outputs.get(ref) for node, ref in refs.items()}
        except (OutputMissing, OSError) as missing:
            raise TransientError(
                f"an earlier output cannot be read: {missing}", type="OUTPUT_MISSING"
            ) from None

    async def _keep(
        self, going: Going, outcome: Outcome, attempt: Attempt | None, span: TraceContext | None
    ) -> None:
        """Put away what is too large to travel, and end."""
        try:
            outcome = await stored(outcome, self._outputs)
        except OSError as error:
            outcome = failure_of(
                TransientError(f"the output cannot be kept: {error.strerror}", type="OUTPUT_STORE")
            )
        except BaseException as error:
            if not self._is_ours(going):
                raise
            outcome = _failure_of(going.job, error)
        # A module may take its cancellation for an error of its own and go on.
        if self._is_ours(going):
            self._end(going.job, outcome, going.start_ns, attempt, span)

    def _end(
        self, job: Job, outcome: Outcome, start_ns: int, attempt: Attempt | None, span: TraceContext | None
    ) -> None:
        end_ns = self._clock.epoch_ns()
        if attempt is None:
            ended = Ended(job, outcome, start_ns, end_ns)
        else:
            hashes = attempt.inputs_hash, attempt.config_hash
            ended = Ended(job, outcome, start_ns, end_ns, *hashes, clamp_cost(attempt.context.cost_tokens))
        try:
            self._report(ended)
        except Exception as error:  # noqa: BLE001 - what cannot be said of the outcome is said of the run
            outcome = _failure_of(job, error)
            self._report(Ended(job, outcome, start_ns, end_ns))
        if span is not None:
            error_text = f"{outcome.type}: {outcome.message}" if isinstance(outcome, Failure) else ""
            emit_run(span, job, start_ns, end_ns, error_text)

    def _report(self, ended: Ended) -> None:
        self._holder.report(ended)
        _ended[type(ended.outcome)].inc()

    def _stop(self, going: Going) -> None:
        if going.context is not None:
            going.context.cancelled = True
            span = parse_traceparent(going.context.traceparent)
            if span is not None:
                # What its module has called has spans below this one.
                emit_run(span, going.job, going.start_ns, self._clock.epoch_ns(), "stopped")
        self._going.pop(going.job.run_id, None)
        going.task.cancel()

    def _hand_back(self, reason: str) -> None:
        now_ns = self._clock.epoch_ns()
        queued, self._queue = self._queue, deque()
        for _, job in queued:
            self._report(Ended(job, Released(reason, may_have_begun=False), now_ns, now_ns))


def _has_kept(job: Job) -> bool:
    """Something has to be fetched."""
    return any(isinstance(value, OutputRef) for value in job.outputs.values())


def _failure_of(job: Job, error: BaseException) -> Failure:
    """What was raised around a module: an error with a class says its own; a module may raise what is no Exception
    (`sys.exit`, a cancellation nobody asked for); anything else is a fault of ours."""
    if isinstance(error, ModuleError) or not isinstance(error, Exception):
        return failure_of(error)
    log.error("attempt broke", run_id=job.run_id, module=job.module, exc_info=error)
    return Failure(
        ErrorClass.TRANSIENT, "INTERNAL", f"the runner failed at it: {clamp_text(type(error).__name__)}"
    )
