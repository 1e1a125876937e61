"""`python -m services.rendering`: the child that renders for a runner, which starts it, and that reads what
is too large for the runner itself.

`services/chassis/process/child_limits.py` describes the pipes. Each request has its own limits of memory and CPU time.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

import orjson

from services.chassis.process.child_limits import ChildLimits, serve
from services.rendering.bodies import body_as_json
from services.rendering.engine import Renderer
from services.rendering.once_more import rendered_once_more
from services.rendering.requests import parts_of, with_parts
from windlass.sdk import PermanentError
from windlass.sdk.encoding import encoded

# CPU time of one request, and one second more for so many bytes. A template that runs out of fuel has used a fraction.
CPU_SECONDS_MAX: Final = 3.0
BYTES_PER_SECOND: Final = 16 * 1024 * 1024
# Memory beyond what the process has at its start: 1.4 GiB for the 64 MiB that a node may load. The limit is one of
# address space, of which a good request uses half. The parser alone reserves 12 bytes for each byte of JSON. One text
# needs 14 in all, customer records need 19, and one text that is handed on whole needs 21 (measured with 64 MiB).
# With this factor 64 MiB have 22 for each byte, and 16 MiB have 46.
MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
MEMORY_PER_REQUEST_BYTE: Final = 14
# The values in a rendered document. The runner parses so many within a second, and in 200 MB.
VALUES_MAX: Final = 1_000_000


def answered(renderer: Renderer, request: bytes) -> tuple[bool, bytes]:
    """True with the value as JSON, or False with the fault as text."""
    try:
        asked, unparsed = parts_of(request)
        if "content_type" in asked:
            return True, body_as_json(bytes(unparsed[0]), asked["content_type"])
        if "once_more" in asked:
            return True, rendered_once_more(renderer, asked, unparsed)
        scope = with_parts(asked["scope"], dict(zip(map(tuple, asked["paths"]), unparsed, strict=True)))
        if "expression" in asked:
            return True, _evaluated(renderer.evaluate(asked["expression"], scope))
        rendered = renderer.render(asked["documents"], scope)
        # The limit of depth counts for each document, not for all together.
        parts = {name: _json(part, f"{name}: the rendered value") for name, part in rendered.items()}
        return True, orjson.dumps({name: orjson.Fragment(part) for name, part in parts.items()})
    except PermanentError as error:
        return False, str(error).encode()
    except MemoryError:
        return False, b"the templates take too much memory"


def _evaluated(value: Any) -> bytes:
    """Numbers beyond JSON are sent too, because a module may compute with them."""
    if isinstance(value, int | float):
        return json.dumps(value).encode()
    return _json(value, "expression: the value")


def _json(value: Any, name: str) -> bytes:
    data = encoded(value, name, "TEMPLATE_ERROR")
    # The runner has to parse it, with nothing to limit what this takes.
    if len(data) > VALUES_MAX and _has_too_many_values(value):
        raise PermanentError(f"{name} has more than {VALUES_MAX} values", type="TEMPLATE_ERROR")
    return data


def _has_too_many_values(value: Any) -> bool:
    count, ahead = 0, [value]
    while ahead and count <= VALUES_MAX:
        inner = ahead.pop()
        if isinstance(inner, dict | list | tuple):
            count += len(inner)
            ahead.extend(inner.values() if isinstance(inner, dict) else inner)
    return count > VALUES_MAX


def limits(request: bytes) -> ChildLimits:
    return ChildLimits(
        CPU_SECONDS_MAX + len(request) / BYTES_PER_SECOND, MEMORY_BYTES_MAX + MEMORY_PER_REQUEST_BYTE * len(request)
    )


if __name__ == "__main__":
    serve(partial(answered, Renderer()), limits)
