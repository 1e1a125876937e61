"""Examines definitions that callers send: parses them, and has their schemas checked in a child."""

from __future__ import annotations

from typing import Any, Final

import orjson

from services.api.app import refusals
from services.api.app.checking.children import Checkers
from services.api.rpc import translate
from services.api.rpc.structs import StructTooLarge, document_of
from services.chassis.grpc.beside import beside
from services.chassis.identity.callers import caller
from windlass.api.v1 import workflows_pb2 as pb
from windlass.definition.examination import examine_parsed, too_large
from windlass.definition.faults import Faults
from windlass.definition.json_values import sift
from windlass.definition.limits import DEFINITION_BYTES_MAX, NODES_MAX
from windlass.definition.modules import form_of
from windlass.definition.parsing import Format, Parsed, parse
from windlass.definition.verdict import Verdict

DefinitionRequest = pb.ApplyWorkflowRequest | pb.ValidateWorkflowRequest
# The text of a larger definition is not indented.
_INDENTED_BYTES_MAX: Final = 16 * 1024
# Each may take half a second to compile. Further ones are not compiled; a faulty one then fits no decision.
SCHEMAS_CHECKED_MAX: Final = 20


class DefinitionExaminer:
    def __init__(self, checker: Checkers) -> None:
        self._checker = checker

    async def examine(self, request: DefinitionRequest) -> tuple[Verdict, str, Format]:
        """The verdict, and the text to store."""
        if not request.source and not request.HasField("definition"):
            raise refusals.invalid_field("definition", "REQUIRED", "must be set, or source")
        size_bytes = request.ByteSize()
        parsed = await beside(size_bytes, lambda: _parsed(request))
        schemas = await beside(size_bytes, lambda: _schemas(parsed.document))
        faults = {schema: await self._checker.fault(caller().workspace, schema) for schema in schemas}
        verdict = await beside(size_bytes, lambda: examine_parsed(parsed, lambda one: faults.get(_as_json(one))))
        if request.source:
            return verdict, request.source, translate.source_format(request.source_format)
        if verdict.faults:
            return verdict, "", Format.JSON
        return verdict, await beside(size_bytes, lambda: _written(parsed, verdict)), Format.JSON


def _parsed(request: DefinitionRequest) -> Parsed:
    if request.source:
        return parse(request.source, translate.source_format(request.source_format))
    try:
        return Parsed(document_of(request.definition, DEFINITION_BYTES_MAX), Faults())
    except StructTooLarge:
        return Parsed(None, Faults([too_large()]))


def _schemas(document: Any) -> list[bytes]:
    """The inputSchema and the forms of approvals as JSON, for a child to compile. Values that are no JSON are faults of
    their own."""
    if not isinstance(document, dict):
        return []
    nodes = document.get("nodes")
    found = [document["inputSchema"]] if "inputSchema" in document else []
    found += [form for node in nodes if (form := form_of(node)) is not None] if isinstance(nodes, list) else []
    distinct = dict.fromkeys(_as_json(sift(schema).value) for schema in found[:NODES_MAX])
    # A larger one is not compiled: the definition is refused for its size.
    return [schema for schema in distinct if len(schema) <= DEFINITION_BYTES_MAX][:SCHEMAS_CHECKED_MAX]


def _as_json(schema: Any) -> bytes:
    return orjson.dumps(schema)


def _written(parsed: Parsed, verdict: Verdict) -> str:
    """The text of a definition that came as a Struct, in the order of its keys there; indented while it is small."""
    layout = orjson.OPT_INDENT_2 if len(verdict.canonical) <= _INDENTED_BYTES_MAX else None
    return orjson.dumps(parsed.document, option=layout).decode()
