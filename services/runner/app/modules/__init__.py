"""The modules that every runner has. Each file declares its own in `BUILT_IN`."""

from services.runner.app.modules.flow import BUILT_IN as _FLOW
from services.runner.app.modules.http_request import BUILT_IN as _HTTP
from windlass.sdk import Module


def built_in() -> list[Module]:
    return [*_FLOW.modules(), *_HTTP.modules()]
