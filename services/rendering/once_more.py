"""What a run worked on: its templates are rendered once more, and hashed as the runner has done it.

This is done in the child alone, because the result may be large, and whoever asks for it only passes it on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from services.rendering.engine import Renderer
from services.rendering.requests import with_parts
from windlass.sdk import PermanentError
from windlass.sdk.encoding import encoded

_HASH_BYTES: Final = 32
_SIZE_BYTES: Final = 8
_HEAD_BYTES: Final = 2 * _HASH_BYTES + _SIZE_BYTES


@dataclass(frozen=True, slots=True)
class WorkDocuments:
    """`documents` and `overrides` are JSON. The first has the members `config` and `inputs`."""

    documents: bytes
    # Laid over the rendered inputs. Empty: nothing.
    overrides: bytes
    # The members of the config that the module evaluates itself.
    raw_members: Sequence[str]
    has_templates: bool
    # A larger result is not returned. It is bounded in the child, so that it never takes the memory of a service.
    bytes_max: int


class WorkedOn(NamedTuple):
    inputs_hash: bytes
    config_hash: bytes
    size_bytes: int
    # JSON with the members `inputs` and `config`. Empty: it is too large.
    documents: bytes

    @classmethod
    def of(cls, body: bytes) -> WorkedOn:
        hashes, size = 2 * _HASH_BYTES, int.from_bytes(body[2 * _HASH_BYTES : _HEAD_BYTES])
        return cls(body[:_HASH_BYTES], body[_HASH_BYTES:hashes], size, body[_HEAD_BYTES:])


def head_of(work: WorkDocuments, scope: Mapping[str, Any]) -> dict[str, Any]:
    asked = {"raw": list(work.raw_members), "has_templates": work.has_templates, "bytes_max": work.bytes_max}
    return {"once_more": asked, "scope": scope}


def parts_of_work(work: WorkDocuments) -> list[bytes]:
    """These come before the data that templates see."""
    return [work.documents, work.overrides]


def rendered_once_more(renderer: Renderer, asked: Mapping[str, Any], parts: Sequence[bytes | memoryview]) -> bytes:
    """The body of a `WorkedOn`. Raises PermanentError if a template does not resolve."""
    documents, overrides, *data = parts
    work = asked["once_more"]
    try:
        found = orjson.loads(documents)
    except orjson.JSONDecodeError:
        raise PermanentError("what a runner has rendered is not JSON", type="TEMPLATE_ERROR") from None
    config, inputs = found["config"], found["inputs"]
    raw = {key: config.pop(key) for key in work["raw"] if key in config}
    if work["has_templates"]:
        scope = with_parts(asked["scope"], dict(zip(map(tuple, asked["paths"]), data, strict=True)))
        rendered = renderer.render({"config": config, "inputs": inputs}, scope)
        config, inputs = rendered["config"], rendered["inputs"]
    if raw:
        config |= raw
    if overrides:
        inputs |= orjson.loads(overrides)
    hashes = [_hash(inputs, "inputs"), _hash(config, "config")]
    made = orjson.dumps({"inputs": inputs, "config": config})
    size = len(made).to_bytes(_SIZE_BYTES)
    return b"".join((*hashes, size, made if len(made) <= work["bytes_max"] else b""))


def _hash(rendered: Any, name: str) -> bytes:
    return rendered_hash(rendered, f"{name}: the rendered value")


def rendered_hash(rendered: Any, name: str) -> bytes:
    """The hash of what a module gets. A template can yield what is no JSON: 2 ** 70, NaN, a key that is no text."""
    return hashlib.sha256(encoded(rendered, name, "TEMPLATE_ERROR", is_canonical=True)).digest()
