"""The modules that every runner has. Each file declares its own in `BUILT_IN`."""

from services.runner.app.modules.flow import BUILT_IN as _FLOW
from services.runner.app.modules.http_request import BUILT_IN as _HTTP
from windlass.sdk import Module, Registry


def built_in() -> list[Module]:
    """All of them."""
    return [module for declared in (_FLOW, _HTTP) for module in _all(declared)]


def _all(declared: Registry) -> list[Module]:
    return [module for name in declared if (module := declared.get(name)) is not None]
