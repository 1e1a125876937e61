"""The inputs and the config of a dead letter: what its run worked on, or else what its definition says.

A runner that reports the failure brings along what it has rendered, if that is small. In all other cases (the runner
died, a person set the run aside, a coordinator ended it, there was no runner) they are rendered once more. Only if that
is refused are the templates shown, and the dead letter then says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import orjson

from services.api.app.ports import DeadLetterView, Workflows
from services.api.rpc.structs import fill_documents
from services.chassis.grpc.beside import beside
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from windlass.api.v1 import dead_letters_pb2 as pb

# The name of a node that undoes another one ends with this.
_UNDO: Final = "$undo"


class RunInputReads(Protocol):
    """Any coordinator."""

    async def run_inputs(self, run_id: str, workspace: str) -> bytes:
        """JSON with the members `inputs` and `config`. Raises the Refusal of GetRunInputs."""
        ...


class LetterInputs:
    def __init__(self, reads: RunInputReads, workflows: Workflows) -> None:
        self._reads = reads
        self._workflows = workflows

    async def shown(self, workspace: str, letter: DeadLetterView) -> pb.DeadLetter:
        """The dead letter with them. One of an execution that could not be admitted has none."""
        whole = pb.DeadLetter()
        whole.CopyFrom(letter.record)
        if not whole.run_id:
            return whole
        documents = letter.rendered
        if not documents:
            try:
                documents = await self._reads.run_inputs(whole.run_id, workspace)
            except Refusal as refused:
                whole.not_rendered = f"{refused.reason}: {refused.message}"
            except DependencyUnavailable as away:
                whole.not_rendered = f"DEPENDENCY_UNAVAILABLE: {away}"
        documents = documents or await self._of_definition(workspace, whole)
        await beside(len(documents), lambda: fill_documents(whole, documents))
        return whole

    async def _of_definition(self, workspace: str, letter: pb.DeadLetter) -> bytes:
        record = await self._workflows.get(workspace, letter.workflow, letter.version)
        node = _node_of({} if record is None else orjson.loads(record.definition), letter.node)
        return orjson.dumps({name: node.get(name, {}) for name in ("inputs", "config")})


def _node_of(definition: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The node with this name, or the compensation of the node that it undoes."""
    node_id = name.removesuffix(_UNDO)
    found: Mapping[str, Any] = next((each for each in definition.get("nodes", ()) if each["id"] == node_id), {})
    return found if node_id == name else found.get("compensate", {})
