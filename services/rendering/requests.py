"""The form of a request to the child: a head, which is JSON on one line, and bytes that this process does not parse.

They lie side by side, not one in the other: such bytes may come from a runner of somebody else, and bytes that are no
JSON could end their part of the request and begin another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from windlass.sdk import PermanentError

_END: Final = b"\n"


def request_of(head: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
    sizes = [len(part) for part in parts]
    return _END.join((orjson.dumps({"head": head, "sizes": sizes}), b"".join(parts)))


def parts_of(request: bytes) -> tuple[dict[str, Any], list[memoryview]]:
    """The head and the parts again. Nothing is copied, because the parts may be most of what the child can hold."""
    place = request.index(_END)
    found, parts = orjson.loads(memoryview(request)[:place]), []
    place += len(_END)
    for size in found["sizes"]:
        parts.append(memoryview(request)[place : place + size])
        place += size
    return found["head"], parts


def with_parts(scope: dict[str, Any], parts: Mapping[tuple[str, ...], bytes | memoryview]) -> dict[str, Any]:
    """The scope with the parts, parsed, in their places. Raises PermanentError when one is no JSON."""
    for (*holders, name), part in parts.items():
        holder = scope
        for step in holders:
            holder = holder.setdefault(step, {})
        try:
            holder[name] = orjson.loads(part)
        except orjson.JSONDecodeError:
            raise PermanentError(f"{'.'.join((*holders, name))} is not JSON", type="TEMPLATE_ERROR") from None
    return scope
