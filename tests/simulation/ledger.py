"""The modules of the simulated workflows, and the ledger in which they write down what they did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.loop import Host, VirtualClock, present_host
from windlass.sdk import Context, PermanentError, Registry, TransientError

# Work that takes longer says how far it is.
_LONG_SECONDS: Final = 0.3


@dataclass
class Call:
    """One call of a module. It is outside of the engine, so no crash makes it undone."""

    host: Host
    run_id: str
    execution_id: str
    node: str
    attempt: int
    effect_key: str
    is_idempotent: bool
    begun_at: float
    # The execution whose data its templates have brought; None: they bring none.
    saw: str | None
    # None: it was stopped, or its process ended.
    ended_at: float | None = None
    is_done: bool = False


@dataclass
class Ledger:
    clock: VirtualClock
    began: Callable[[Call], None]
    calls: list[Call] = field(default_factory=list)

    async def write(self, ctx: Context, inputs: Any, config: dict[str, Any], *, is_idempotent: bool) -> Call:
        names = (ctx.run_id, ctx.execution_id, ctx.node, ctx.attempt, ctx.effect_key)
        call = Call(present_host(), *names, is_idempotent, self.clock.monotonic(), inputs.get("of"))
        self.calls.append(call)
        self.began(call)
        seconds = config.get("seconds", 0.0)
        await self.clock.sleep(seconds / 2)
        if seconds > _LONG_SECONDS:
            await ctx.heartbeat(0.5, "half of it", {"half": True})
        await self.clock.sleep(seconds / 2)
        call.ended_at, call.is_done = self.clock.monotonic(), True
        return call


def declare_modules(registry: Registry, ledger: Ledger) -> None:
    """`seconds`: how long the work takes. `fails`: so many attempts fail. `fails_calls`: so many calls fail.
    `is_permanent`: and there is no use in more."""

    async def work(ctx: Context, inputs: Any, config: dict[str, Any], *, is_idempotent: bool) -> dict[str, Any]:
        await ledger.write(ctx, inputs, config, is_idempotent=is_idempotent)
        done = sum((each.execution_id, each.node) == (ctx.execution_id, ctx.node) for each in ledger.calls)
        if ctx.attempt <= config.get("fails", 0) or done <= config.get("fails_calls", 0):
            raise TransientError("as told")
        if config.get("is_permanent"):
            raise PermanentError("as told")
        return {"node": ctx.node, "execution": ctx.execution_id, "inputs": inputs}

    @registry.declare("ledger.put@1", idempotent=True)
    async def put(ctx: Context, inputs: Any, config: dict[str, Any]) -> dict[str, Any]:
        return await work(ctx, inputs, config, is_idempotent=True)

    @registry.declare("ledger.call@1", idempotent=True)
    async def call(ctx: Context, inputs: Any, config: dict[str, Any]) -> dict[str, Any]:
        ctx.target("elsewhere")
        return await work(ctx, inputs, config, is_idempotent=True)

    @registry.declare("ledger.defer@1", idempotent=True)
    async def defer(ctx: Context, inputs: Any, config: dict[str, Any]) -> None:
        await ledger.write(ctx, inputs, config, is_idempotent=True)
        ctx.defer()

    @registry.declare("ledger.add@1")
    async def add(ctx: Context, inputs: Any, config: dict[str, Any]) -> dict[str, Any]:
        return await work(ctx, inputs, config, is_idempotent=False)
