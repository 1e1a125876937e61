"""One attempt, from the grant's bytes to an outcome: parse, render, call the module, encode what it returned.

Everything a module or its input can do wrong ends here as a Failure; nothing of it reaches the session.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import math
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from services.runner.core.failures import ErrorClass, Failure, cut, of_exception
from services.runner.core.job import Job, Outcome, OutputRef, Succeeded
from services.runner.rendering import Renderer
from windlass.sdk import Branch, Context, Module, ModuleError, PermanentError

INLINE_BYTES_MAX = 256 * 1024
OUTPUT_BYTES_MAX = 64 * 1024 * 1024

_log = logging.getLogger("windlass.module")


class Outputs(Protocol):
    """Keeps results that are too large to travel."""

    async def put(self, value: bytes) -> OutputRef: ...

    async def get(self, ref: OutputRef) -> bytes: ...


@dataclass(slots=True)
class Attempt:
    """A job made ready: its data parsed and rendered, its context made."""

    job: Job
    module: Module
    context: Context
    inputs: Any
    config: Any
    inputs_hash: bytes
    config_hash: bytes


def prepare(
    job: Job, module: Module, renderer: Renderer, loaded: Mapping[str, bytes], traceparent: str
) -> Attempt:
    """Parse and render; `loaded` are outputs fetched before. Raises ModuleError when a template does not resolve."""
    scope: dict[str, Any] = {}

    def evaluate(expression: str) -> Any:
        return renderer.evaluate(expression, scope or _scope(job, loaded, scope))

    config, inputs = orjson.loads(job.config or b"{}"), orjson.loads(job.inputs or b"{}")
    if job.has_templates:
        _scope(job, loaded, scope)
        raw = {key: config[key] for key in module.raw_config if key in config}
        rest = {key: value for key, value in config.items() if key not in raw}
        config = renderer.render(rest, scope, path="config") | raw
        inputs = renderer.render(inputs, scope, path="inputs")
    deadline = None
    if job.timeout_seconds:
        deadline = datetime.fromtimestamp(datetime.now(UTC).timestamp() + job.timeout_seconds, UTC)
    context = Context(
        execution_id=job.execution_id,
        run_id=job.run_id,
        workflow=job.workflow,
        node=job.node,
        attempt=job.attempt,
        effect_key=job.effect_key,
        may_have_run_before=job.may_have_run_before,
        deadline=deadline,
        cursor=orjson.loads(job.cursor) if job.cursor else None,
        log=_log,
        evaluate=evaluate,
        traceparent=traceparent,
    )
    return Attempt(job, module, context, inputs, config, _hash(inputs), _hash(config))


def call_inline(attempt: Attempt) -> Outcome:
    """Do a short, non-blocking module's work here and now."""
    try:
        returned = attempt.module.function(attempt.context, attempt.inputs, attempt.config)
        return _encoded(returned)
    except Exception as error:  # noqa: BLE001 - a module may raise anything; it is an outcome of its run
        return failure_of(error)


async def call(attempt: Attempt) -> Outcome:
    """Do the work; a plain function off the event loop. Cancellation passes: it means that nobody wants the outcome."""
    timeout = attempt.job.timeout_seconds or None
    try:
        async with asyncio.timeout(timeout) as limit:
            if attempt.module.is_async:
                work = attempt.module.function(attempt.context, attempt.inputs, attempt.config)
                assert inspect.isawaitable(work)
                returned = await work
            else:
                returned = await _in_thread(attempt)
            return _encoded(returned)
    except Exception as error:  # noqa: BLE001 - a module may raise anything; it is an outcome of its run
        if isinstance(error, TimeoutError) and limit.expired():
            attempt.context.cancelled = True
            return Failure(ErrorClass.TIMEOUT, "NODE_TIMEOUT", f"not done after {timeout:g} s")
        return failure_of(error)


def _in_thread(attempt: Attempt) -> Awaitable[Any]:
    return asyncio.to_thread(attempt.module.function, attempt.context, attempt.inputs, attempt.config)


async def stored(outcome: Outcome, outputs: Outputs) -> Outcome:
    """Move an output that is too large to travel into the store, before anything names it."""
    if (
        isinstance(outcome, Succeeded)
        and isinstance(outcome.output, bytes)
        and len(outcome.output) > INLINE_BYTES_MAX
    ):
        if len(outcome.output) > OUTPUT_BYTES_MAX:
            return Failure(
                ErrorClass.PERMANENT, "OUTPUT_TOO_LARGE", f"the output is over {OUTPUT_BYTES_MAX} bytes"
            )
        return Succeeded(await outputs.put(outcome.output), outcome.branch)
    return outcome


def is_small(outcome: Outcome) -> bool:
    """True: it can be reported as it is."""
    return not (isinstance(outcome, Succeeded) and len(outcome.output) > INLINE_BYTES_MAX)  # type: ignore[arg-type]


def failure_of(error: Exception) -> Failure:
    """What a module raised, as a failure with a class."""
    if isinstance(error, ModuleError):
        return Failure(ErrorClass(error.class_name), cut(error.type), cut(str(error)), error.retry_after)
    return of_exception(error)


def _scope(job: Job, loaded: Mapping[str, bytes], scope: dict[str, Any]) -> dict[str, Any]:
    nodes = {}
    for node, value in job.outputs.items():
        data = value if isinstance(value, bytes) else loaded[node]
        nodes[node] = {"output": orjson.loads(data or b"null")}
    scope["input"] = orjson.loads(job.execution_input or b"{}")
    scope["state"] = orjson.loads(job.state or b"{}")
    scope["nodes"] = nodes
    scope["execution"] = {"id": job.execution_id, "workflow": job.workflow}
    return scope


def _encoded(returned: Any) -> Succeeded:
    branch = ""
    if isinstance(returned, Branch):
        branch, returned = returned.label, returned.output
    try:
        data = orjson.dumps(returned)
    except TypeError as error:
        raise PermanentError(f"the returned value is not JSON: {error}", type="OUTPUT_NOT_JSON") from None
    # orjson writes NaN and infinities as null; a value that is not null must not become it unseen.
    if b"null" in data and _has_nan(returned):
        raise PermanentError("the returned value holds NaN or an infinity", type="OUTPUT_NOT_JSON")
    return Succeeded(data, branch)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_nan(item) for item in value)
    return False


def _hash(value: Any) -> bytes:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).digest()
