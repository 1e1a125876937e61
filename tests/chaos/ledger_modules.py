"""User modules that keep an effect ledger outside the engine, for tests that kill things.

Each call writes its beginning and its end, or that it fails, to one file, with fsync, before it goes on. So the file
tells what happened even when the process has died. The directory is named by WINDLASS_TEST_LEDGER.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from windlass.sdk import Context, PermanentError, TransientError, module

_DIRECTORY = Path(os.environ["WINDLASS_TEST_LEDGER"])


def _write(phase: str, ctx: Context) -> None:
    line = {
        "phase": phase,
        "effect_key": ctx.effect_key,
        "execution": ctx.execution_id,
        "node": ctx.node,
        "run": ctx.run_id,
        "attempt": ctx.attempt,
        "pid": os.getpid(),
        "monotonic_ns": time.monotonic_ns(),
    }
    handle = os.open(_DIRECTORY / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def _effect(ctx: Context) -> bool:
    """Stands for a third party that takes each effect key once. True the first time."""
    try:
        handle = os.open(_DIRECTORY / "effects" / ctx.effect_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    os.close(handle)
    return True


async def _work(ctx: Context, config: dict[str, Any]) -> dict[str, Any]:
    _write("begin", ctx)
    await asyncio.sleep(config.get("seconds", 0.01))
    is_first = _effect(ctx)
    _write("end", ctx)
    # Each attempt has a text of its own, or the second one would find the text kept already.
    padding = f"{ctx.run_id} " * (config.get("bytes", 0) // len(ctx.run_id))
    return {"first": is_first, "node": ctx.node, "padding": padding}


@module("ledger.put@1", idempotent=True)
async def put(ctx: Context, inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """An effect that its key makes harmless to repeat."""
    return await _work(ctx, config)


@module("ledger.add@1")
async def add(ctx: Context, inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The same effect, but without the promise that a repeat is harmless."""
    return await _work(ctx, config)


@module("ledger.flaky@1", idempotent=True)
async def flaky(ctx: Context, inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Fails its first attempt."""
    if ctx.attempt == 1:
        _write("begin", ctx)
        _write("fail", ctx)
        raise TransientError("the first attempt always fails")
    return await _work(ctx, config)


@module("ledger.strict@1", idempotent=True)
async def strict(ctx: Context, inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Fails for good unless its inputs are good."""
    if not inputs["good"]:
        _write("begin", ctx)
        _write("fail", ctx)
        raise PermanentError("the inputs are not good")
    return await _work(ctx, config)


@module("ledger.call@1", idempotent=True)
async def call(ctx: Context, inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Calls a target that is away until a file of its name is in the ledger."""
    ctx.target(inputs["target"])
    if not (_DIRECTORY / inputs["target"]).exists():
        raise TransientError("it is away")
    return await _work(ctx, config)


@module("ledger.hold@1")
async def hold(ctx: Context, inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Blocks the whole event loop of its runner, as user code should not, and is not harmless to repeat."""
    _write("begin", ctx)
    time.sleep(config["seconds"])  # noqa: ASYNC251 - that is the point
    is_first = _effect(ctx)
    _write("end", ctx)
    return {"first": is_first}
