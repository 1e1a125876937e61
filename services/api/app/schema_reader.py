"""Inputs checked against a version's schema: here where that is plain, by a child otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from services.api.app.ports import Checker
from services.api.core.plain_schemas import PRODUCT_MAX, SCHEMA_BYTES_MAX, is_plain
from services.chassis.grpc.errors import Violation
from windlass.definition.input_schemas import compiled

INPUT_BYTES_MAX: Final = 256 * 1024
VIOLATIONS_MAX: Final = 50


class InputCheck:
    """The schema of one version, which was compiled once before it was stored."""

    def __init__(self, schema: Any) -> None:
        self._source = orjson.dumps(schema)
        is_cheap = len(self._source) <= SCHEMA_BYTES_MAX and is_plain(schema)
        self._validator = compiled(schema) if is_cheap else None

    async def violations(
        self, checker: Checker, workspace: str, document: Any, content: bytes, most: int = VIOLATIONS_MAX
    ) -> Sequence[Violation]:
        """Empty when the document fits; `content` is the document as JSON."""
        if self._validator is not None and len(self._source) * len(content) <= PRODUCT_MAX:
            if self._validator.is_valid(document):
                return ()
        return await checker.violations(workspace, self._source, content, most)
