"""One attempt, from the grant's bytes to an outcome: read, render, call the module, encode what it returned.

Foreseen mistakes of a module or of its input become a Failure here. The worker's guard catches everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from services.rendering import Rendering, with_parts
from services.rendering.once_more import rendered_hash
from services.rendering.scope import data_of, scope_of
from services.runner.app.module_loop import LoopStalled, ModuleLoop
from services.runner.app.module_threads import ModuleThreads
from services.runner.app.modules.sent_secrets import without_secrets
from services.runner.app.ports import Outputs
from services.runner.core.failures import Failure, FailureClass, class_named, of_exception
from services.runner.core.job import (
    AttemptOutcome,
    Deferred,
    EncodedOutput,
    Job,
    OutputMissing,
    Released,
    RunLease,
    StoredOutput,
    Succeeded,
)
from services.runner.core.plain import are_plain_conditions, is_plain_document, weight_of_document
from services.runner.core.untrusted import BRANCH_CHARACTERS_MAX, NAME_CHARACTERS_MAX, clamp_seconds, clamp_text
from windlass.definition.limits import ATTEMPT_SECONDS_MAX
from windlass.definition.targets import HTTP_REQUEST
from windlass.sdk import Branch, CircuitOpenError, Context, Module, ModuleError, PermanentError, TransientError
from windlass.sdk.encoding import encoded

INLINE_BYTES_MAX = 256 * 1024
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
# The reason of a run that is handed back because its target must not be called.
CIRCUIT_OPEN = "CIRCUIT_OPEN"
# What is sent along with a failure, so that people see what the node worked on.
RECORDED_BYTES_MAX = 64 * 1024
# Of the outputs that a node reads from the store, all together.
LOADED_BYTES_MAX = OUTPUT_BYTES_MAX

# Carries the lines that modules write by `ctx.log`.
MODULE_LOG = logging.getLogger("windlass.module")


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """A module's log. Each line names its run, beside what the module gives as `extra`."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            MODULE_LOG,
            {"execution_id": job.execution_id, "run_id": job.run_id, "node": job.node, "attempt": job.attempt},
        )

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


@dataclass(frozen=True, slots=True)
class Reading:
    """The parsed JSON of a job, and whether it is plain (`core/plain.py`)."""

    # The members of the config that the module evaluates itself.
    raw: dict[str, Any]
    # The rest of the config, and the inputs: these are rendered.
    documents: dict[str, Any]
    has_templates: bool
    has_plain_documents: bool
    # True when every expression in `raw` is plain too, so that all of it may be done on the event loop.
    is_plain: bool


@dataclass(slots=True)
class Attempt:
    """A job that is ready to begin: its data are rendered, its context is made."""

    job: Job
    module: Module
    context: Context
    inputs: Any
    config: Any
    inputs_hash: bytes
    config_hash: bytes


def read(job: Job, module: Module) -> Reading:
    """Parse the job. Every text in the raw members counts as an expression: the module is going to evaluate it."""
    config, inputs = orjson.loads(job.config or b"{}"), orjson.loads(job.inputs or b"{}")
    raw = {key: config.pop(key) for key in module.raw_config if key in config}
    documents = {"config": config, "inputs": inputs}
    weight = weight_of_document(documents) if job.has_templates else 0
    if not weight and not raw:
        # Nothing is evaluated, so the size of what templates see does not matter.
        return Reading(raw, documents, has_templates=False, has_plain_documents=True, is_plain=True)
    data_bytes = bytes_of_data(job)
    has_plain_documents = is_plain_document(weight, data_bytes)
    is_plain = has_plain_documents and are_plain_conditions(raw, data_bytes)
    return Reading(raw, documents, weight > 0, has_plain_documents, is_plain)


def prepare(
    job: Job, module: Module, reading: Reading, rendering: Rendering, loaded: Mapping[str, bytes], traceparent: str
) -> Attempt:
    """Render the templates. `loaded` holds the outputs that had to be fetched, by node.

    Raises ModuleError when a template does not resolve. Blocks until a child has rendered what is not plain."""
    parsed: dict[str, Any] | None = None

    def scope() -> dict[str, Any]:
        """Only plain templates see the data in this process, so it is parsed for them alone."""
        nonlocal parsed
        parsed = parsed or with_parts(scope_of(job), data_of(job, loaded))
        return parsed

    def evaluate(expression: str) -> Any:
        if are_plain_conditions(expression, bytes_of_data(job)):
            return rendering.renderer.evaluate(expression, scope())
        return rendering.children.of(job.workspace).evaluate(expression, scope_of(job), data_of(job, loaded))

    documents = reading.documents
    if not reading.has_plain_documents:
        documents = rendering.children.of(job.workspace).render(documents, scope_of(job), data_of(job, loaded))
    elif reading.has_templates:
        documents = rendering.renderer.render(documents, scope())
    config, inputs = documents["config"] | reading.raw, documents["inputs"]
    if job.input_overrides:
        inputs = inputs | orjson.loads(job.input_overrides)
    context = _context(job, evaluate, traceparent)
    inputs_hash, config_hash = (
        rendered_hash(inputs, "inputs: the rendered value"),
        rendered_hash(config, "config: the rendered value"),
    )
    return Attempt(job, module, context, inputs, config, inputs_hash, config_hash)


def _context(job: Job, evaluate: Callable[[str], Any], traceparent: str) -> Context:
    """The deadline of the attempt counts from this call."""
    return Context(
        execution_id=job.execution_id,
        run_id=job.run_id,
        workflow=job.workflow,
        node=job.node,
        attempt=job.attempt,
        effect_key=job.effect_key,
        may_have_run_before=job.may_have_run_before,
        deadline=_deadline(job),
        cursor=orjson.loads(job.cursor) if job.cursor else None,
        log=RunLog(job),
        evaluate=evaluate,
        traceparent=traceparent,
        completion_token=job.completion_token,
        open_targets=job.open_targets,
    )


def call_inline(attempt: Attempt) -> AttemptOutcome:
    """Call a short module that never blocks, on the thread of the caller."""
    try:
        _name_target(attempt)
        returned = attempt.module.function(attempt.context, attempt.inputs, attempt.config)
        return _outcome(attempt.context, returned)
    except Exception as error:  # noqa: BLE001 - a module may raise anything; it is an outcome of its run
        return _outcome_of(error, attempt.context)


def prepare_and_call_inline(prepared: Callable[[], Attempt]) -> tuple[Attempt, AttemptOutcome]:
    """Prepare and call in one step, for a short module in the thread of the rendering queue."""
    attempt = prepared()
    return attempt, call_inline(attempt)


async def call(attempt: Attempt, threads: ModuleThreads, module_loop: ModuleLoop) -> AttemptOutcome:
    """Call the module, which never runs on the caller's event loop: a plain function has a thread of its own, and all
    async functions share one.

    Only an Exception becomes a Failure. The worker decides what a cancellation means, and LoopStalled."""
    timeout = _timeout_seconds(attempt.job)
    function, given = attempt.module.function, (attempt.context, attempt.inputs, attempt.config)
    try:
        _name_target(attempt)
        async with asyncio.timeout(timeout) as limit:
            if attempt.module.is_async:
                returned: AttemptOutcome = await module_loop.call(task_name(attempt.job), _awaited, function, *given)
            else:
                returned = await threads.call(_called, function, *given)
            return returned
    except LoopStalled:
        raise
    except Exception as error:  # noqa: BLE001 - a module may raise anything; it is an outcome of its run
        if isinstance(error, TimeoutError) and limit.expired():
            attempt.context.cancelled = True
            return Failure(FailureClass.TIMEOUT, "NODE_TIMEOUT", f"not done after {timeout:g} s")
        return _outcome_of(error, attempt.context)


def _name_target(attempt: Attempt) -> None:
    if attempt.module.target:
        attempt.context.target(attempt.module.target)


def _outcome_of(error: Exception, context: Context) -> AttemptOutcome:
    """The run is handed back when the module called nothing, because it was told of an open circuit."""
    if context.is_held_back and isinstance(error, CircuitOpenError):
        return Released(CIRCUIT_OPEN, may_have_begun=False)
    return failure_of(error)


def task_name(job: Job) -> str:
    """The name of each task that works on the run."""
    return f"run {job.run_id}"


def _called(function: Callable[..., Any], context: Context, *given: Any) -> AttemptOutcome:
    return _outcome(context, function(context, *given))


async def _awaited(function: Callable[..., Awaitable[Any]], context: Context, *given: Any) -> AttemptOutcome:
    return _outcome(context, await function(context, *given))


def _outcome(context: Context, returned: Any) -> AttemptOutcome:
    """A module that has deferred its work returns whatever it likes, perhaps the token: it is not kept anywhere."""
    return Deferred() if context.deferred else _encoded(returned)


async def stored(outcome: AttemptOutcome, outputs: Outputs, lease: RunLease) -> AttemptOutcome:
    """Keep an output that is too large for a report in the store, before anything names it."""
    if isinstance(outcome, Succeeded) and isinstance(outcome.output, bytes) and len(outcome.output) > INLINE_BYTES_MAX:
        if len(outcome.output) > OUTPUT_BYTES_MAX:
            return Failure(FailureClass.PERMANENT, "OUTPUT_TOO_LARGE", f"the output is over {OUTPUT_BYTES_MAX} bytes")
        return Succeeded(await outputs.put(outcome.output, lease), outcome.branch)
    return outcome


async def with_input(job: Job, outputs: Outputs) -> Job:
    """The job with its execution's input, which a grant leaves out when it would be too large with it."""
    ref = job.execution_input
    if isinstance(ref, bytes):
        return job
    try:
        return replace(job, execution_input=await outputs.get(ref))
    except (OutputMissing, OSError) as missing:
        raise TransientError(f"the input cannot be read: {missing}", type="OUTPUT_MISSING") from None


async def kept_outputs(job: Job, outputs: Outputs) -> dict[str, bytes]:
    """The outputs that are in the store, or that were left out of the grant, by node. Sizes are true: the coordinator
    has compared those that runners reported with the stored ones, and the store does so again."""
    refs = {node: value for node, value in job.outputs.items() if isinstance(value, StoredOutput)}
    # An output that was only left out of the grant has no hash. The coordinator limits the sum of such outputs.
    size_bytes = sum(ref.size_bytes for ref in refs.values() if ref.sha256)
    if size_bytes > LOADED_BYTES_MAX:
        raise PermanentError(
            f"the stored outputs that the node reads have {size_bytes} bytes; at most {LOADED_BYTES_MAX} are loaded",
            type="INPUTS_TOO_LARGE",
        )
    try:
        return {node: await outputs.get(ref) for node, ref in refs.items()}
    except (OutputMissing, OSError) as missing:
        raise TransientError(f"an earlier output cannot be read: {missing}", type="OUTPUT_MISSING") from None


def is_small(outcome: AttemptOutcome) -> bool:
    """True when it fits into a report as it is."""
    return not (isinstance(outcome, Succeeded) and len(outcome.output) > INLINE_BYTES_MAX)  # type: ignore[arg-type]


def failure_of(error: BaseException) -> Failure:
    """Classify what a module raised. Text and numbers in the error come from the module, so they are clamped."""
    if not isinstance(error, ModuleError):
        return of_exception(error)
    # A subclass in a module may not have called our __init__, and then lacks these attributes.
    failure_class = class_named(error.class_name)
    name = clamp_text(getattr(error, "type", failure_class), NAME_CHARACTERS_MAX)
    return Failure(failure_class, name, clamp_text(error), clamp_seconds(getattr(error, "retry_after", None)))


def _timeout_seconds(job: Job) -> float:
    """Every attempt has a timeout, because it holds a place."""
    return job.timeout_seconds or float(ATTEMPT_SECONDS_MAX)


def _deadline(job: Job) -> datetime:
    """The earlier of the attempt's deadline, which counts from now, and its execution's."""
    own = datetime.now(UTC) + timedelta(seconds=_timeout_seconds(job))
    return min(own, datetime.fromtimestamp(job.deadline_ns / 1e9, UTC)) if job.deadline_ns else own


def bytes_of_data(job: Job) -> int:
    """The size of everything that the templates of the job can see."""
    data = (job.execution_input, job.state, job.item, job.error, *job.outputs.values(), *job.without_output.values())
    return sum(len(value) if isinstance(value, bytes) else value.size_bytes for value in data)


def _encoded(returned: Any) -> Succeeded:
    branch = ""
    if isinstance(returned, Branch):
        branch, returned = _label(returned.label), returned.output
    if isinstance(returned, EncodedOutput):
        return Succeeded(returned.json, branch)
    return Succeeded(encoded(returned, "the returned value", "OUTPUT_NOT_JSON"), branch)


def _label(label: Any) -> str:
    if not isinstance(label, str) or label != clamp_text(label, BRANCH_CHARACTERS_MAX):
        raise PermanentError(
            f"a branch is named by text of up to {BRANCH_CHARACTERS_MAX} characters, not by {label!r:.64}",
            type="INVALID_BRANCH",
        )
    return label


def rendered_of(attempt: Attempt) -> bytes:
    """Config and inputs for people, if they are small enough to be kept, without the secrets of a request."""
    # The module may have changed them, or they are not of its form. Then they say little.
    config = attempt.config
    try:
        if attempt.job.module == HTTP_REQUEST:
            config = without_secrets(config)
        rendered = orjson.dumps({"config": config, "inputs": attempt.inputs})
    except (TypeError, ValueError, AttributeError):
        return b""
    return rendered if len(rendered) <= RECORDED_BYTES_MAX else b""
