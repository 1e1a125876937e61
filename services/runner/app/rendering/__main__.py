"""`python -m services.runner.app.rendering`: the child that renders for a runner, which starts it.

`services/chassis/process/child_limits.py` describes the pipes. Each request has its own limits of memory and CPU time.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Final

import orjson

from services.chassis.process.child_limits import ChildLimits, serve
from services.runner.app.rendering.engine import Renderer
from services.runner.app.rendering.renderer_process import BYTES_PER_SECOND
from windlass.sdk import PermanentError
from windlass.sdk.encoding import NotJson, encoded

# CPU time of one request. A template that runs out of fuel has used a fraction of it.
CPU_SECONDS_MAX: Final = 3.0
# Memory beyond what the process has at its start. Parsed data takes several times its bytes.
MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
MEMORY_PER_REQUEST_BYTE: Final = 16


def answered(renderer: Renderer, request: bytes) -> tuple[bool, bytes]:
    """True with the value as JSON, or False with the fault as text."""
    try:
        asked = orjson.loads(request)
        if "expression" in asked:
            value = renderer.evaluate(asked["expression"], asked["scope"], path=asked["path"])
            return True, _evaluated(value, asked["path"])
        value = renderer.render(asked["value"], asked["scope"], path=asked["path"])
        return True, _rendered(value, asked["path"])
    except PermanentError as error:
        return False, str(error).encode()
    except MemoryError:
        return False, b"the templates take too much memory"


def _rendered(value: Any, path: str) -> bytes:
    """Encoded part by part: the limit of depth counts for each part, not for the whole."""
    if isinstance(value, dict) and not path:
        return orjson.dumps({key: orjson.Fragment(_json(part, key)) for key, part in value.items()})
    return _json(value, path)


def _json(value: Any, path: str) -> bytes:
    try:
        return encoded(value)
    except NotJson as fault:
        raise PermanentError(f"{path}: the rendered value is not JSON: {fault}", type="TEMPLATE_ERROR") from None


def _evaluated(value: Any, path: str) -> bytes:
    """Numbers beyond JSON are sent too, because a module may compute with them."""
    try:
        return encoded(value)
    except NotJson as fault:
        if isinstance(value, int | float):
            return json.dumps(value).encode()
        raise PermanentError(f"{path}: the value is not JSON: {fault}", type="TEMPLATE_ERROR") from None


def limits(request: bytes) -> ChildLimits:
    return ChildLimits(
        CPU_SECONDS_MAX + len(request) / BYTES_PER_SECOND, MEMORY_BYTES_MAX + MEMORY_PER_REQUEST_BYTE * len(request)
    )


if __name__ == "__main__":
    # Services go before templates.
    os.nice(5)
    serve(partial(answered, Renderer()), limits)
