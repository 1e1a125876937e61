"""Modules that shape the flow and touch nothing outside: noop, transform, condition, switch, delay, fail."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from services.runner.core.plain import without_braces
from windlass.definition.config_schemas import DELAY_SECONDS_MAX
from windlass.definition.durations import SECOND, parse_duration
from windlass.sdk import Branch, CircuitOpenError, Context, ModuleError, ModuleTimeout, PermanentError, Registry
from windlass.sdk.registry import Returned

BUILT_IN = Registry()

_ERRORS = {"PERMANENT": PermanentError, "TIMEOUT": ModuleTimeout, "CIRCUIT_OPEN": CircuitOpenError}


@BUILT_IN.declare("noop@1", idempotent=True, inline=True)
def noop(_ctx: Context, _inputs: Any, _config: Any) -> Returned:
    """Does nothing; its output is null."""
    return None


@BUILT_IN.declare("transform@1", idempotent=True, inline=True)
def transform(_ctx: Context, inputs: Any, _config: Any) -> Returned:
    """Returns its rendered inputs."""
    output: Returned = inputs
    return output


@BUILT_IN.declare("condition@1", idempotent=True, inline=True, raw_config=frozenset({"expression"}))
def condition(ctx: Context, _inputs: Any, config: Any) -> Returned:
    """Takes the branch `true` or `false` by the truth of config.expression."""
    truth = bool(ctx.evaluate(bare(_required(config, "expression"))))
    return Branch("true" if truth else "false", output={"result": truth})


@BUILT_IN.declare("switch@1", idempotent=True, inline=True, raw_config=frozenset({"cases"}))
def switch(ctx: Context, _inputs: Any, config: Any) -> Returned:
    """Takes the branch of the first case whose `when` is true, else config.default."""
    for case in _required(config, "cases"):
        if ctx.evaluate(bare(_required(case, "when"))):
            return Branch(str(_required(case, "branch")), output={"branch": case["branch"]})
    default = config.get("default")
    if default is None:
        raise PermanentError("no case is true and there is no default", type="NO_BRANCH")
    return Branch(str(default), output={"branch": default})


@BUILT_IN.declare("delay@1", idempotent=True, resumable=True)
async def delay(ctx: Context, _inputs: Any, config: Any) -> Returned:
    """Waits for config.duration and keeps its place at the runner. For long waits use sleep@1, which keeps none."""
    seconds = seconds_of(_required(config, "duration"))
    if seconds > DELAY_SECONDS_MAX:
        raise PermanentError("delay@1 takes an hour at most; use sleep@1", type="INVALID_CONFIG")
    seconds = seconds_left(ctx.cursor, seconds)
    until = time.monotonic() + seconds
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ctx.tell(cursor={"seconds_left": max(0.0, until - time.monotonic())})
        raise
    return None


def seconds_left(cursor: Any, seconds: float) -> float:
    """The part of the delay that an earlier attempt has left: never more than all of it, because the cursor may come
    from a runner of a workspace, which can write anything into it."""
    left = cursor.get("seconds_left") if isinstance(cursor, dict) else None
    if not isinstance(left, int | float) or math.isnan(left):
        return seconds
    return min(max(0.0, left), seconds)


@BUILT_IN.declare("fail@1", idempotent=True, inline=True)
def fail(ctx: Context, inputs: Any, config: Any) -> Returned:
    """Fails with config.type and config.message; with config.untilAttempt, succeeds from that attempt on."""
    until = config.get("untilAttempt")
    if until is not None and ctx.attempt >= int(until):
        return {"attempt": ctx.attempt, "inputs": inputs}
    kind = str(config.get("type", "TRANSIENT"))
    raised: type[ModuleError] = _ERRORS.get(kind, ModuleError)
    raise raised(str(config.get("message", "failed as configured")), type=kind)


def bare(expression: Any) -> str:
    """The expression without the braces that people put around it by habit.

    Anything but text is refused: nothing has checked whether it is plain enough to be evaluated here."""
    if not isinstance(expression, str):
        raise PermanentError(f"an expression is text, not {expression!r:.64}", type="INVALID_CONFIG")
    return without_braces(expression)


def seconds_of(duration: Any) -> float:
    try:
        return parse_duration(duration) / SECOND
    except ValueError as fault:
        raise PermanentError(str(fault), type="INVALID_CONFIG") from None


def _required(config: Any, key: str) -> Any:
    if not isinstance(config, dict) or key not in config:
        raise PermanentError(f"config.{key} is missing", type="INVALID_CONFIG")
    return config[key]
