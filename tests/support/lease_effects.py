"""Names the effects that a lease machine asks of its driver, for tests that compare them with a table."""

from dataclasses import fields

from services.chassis.lease.effects import HolderEffects, ServerEffects


def named(effects: ServerEffects | HolderEffects) -> list[str]:
    """The fields that hold something, in the order in which a driver handles them, and the reason of each redial."""
    names = [each.name for each in fields(effects) if each.name != "redials" and getattr(effects, each.name)]
    redials = effects.redials if isinstance(effects, HolderEffects) else []
    return [*names, *[f"redial:{each.reason}" for each in redials]]
