"""For authors of modules: a decorator, a context, and the errors that say whether to try again.

    from windlass.sdk import module, Context, TransientError

    @module("ledger.append@1", idempotent=True)
    async def append(ctx: Context, inputs: dict, config: dict) -> dict:
        return {"balance": await post(inputs, key=ctx.effect_key)}

Hazard: an effect happens at least once. A module declared idempotent must hand `ctx.effect_key` to every system that it
changes, so that these recognise a repetition. Another runner begins its work about a second after its runner has died,
or has been cut off and still works.
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
