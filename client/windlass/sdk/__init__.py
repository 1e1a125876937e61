"""What an author of modules needs: a decorator, a context, the errors that say whether to try again.

    from windlass.sdk import module, Context, TransientError

    @module("ledger.append@1", idempotent=True)
    async def append(ctx: Context, inputs: dict, config: dict) -> dict:
        return {"balance": await post(inputs, key=ctx.effect_key)}

Hazard: an effect happens at least once. A module declared idempotent must hand `ctx.effect_key` to whatever it changes,
so that the second time is no second effect; its work is elsewhere about a second after its runner died, or was cut off
and works on.
"""

from windlass.sdk.context import Context
from windlass.sdk.errors import CircuitOpenError, ModuleError, ModuleTimeout, PermanentError, TransientError
from windlass.sdk.registry import Branch, Module, Registry, Returned, module, registry

__all__ = [
    "Branch",
    "CircuitOpenError",
    "Context",
    "Module",
    "ModuleError",
    "ModuleTimeout",
    "PermanentError",
    "Registry",
    "Returned",
    "TransientError",
    "module",
    "registry",
]
