"""What a run worked on: the inputs and the config of its node, as they were rendered.

Nothing is stored for this. What the templates of a node saw follows from the journal, up to the lease of the run, and
rendering is deterministic; so the documents are made again when somebody asks. The runner has reported hashes of what
it rendered, and the answer is refused if the documents made here have others.

Documents that a runner rendered for a control node, or for a runner that renders nothing, are in the journal.

Hazard: templates are rendered in children, and what they see may be large. So it is loaded only when a child is free;
workspaces take turns at these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

import orjson

from services.chassis.blobs import BlobMissing, NamesBlob
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.ports import Row
from services.coordinator.core.definition import Node
from services.coordinator.core.events import ControlRendered, RunEvent, WorkBlocked, WorkSkipped, WorkTakenOver
from services.coordinator.core.inputs import seen_nodes
from services.coordinator.core.items import item_of
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import FinalError, OutputRef, Value, WorkKey, rfc3339
from services.coordinator.core.workflow_state import seen_state
from services.rendering.children import RenderingChildren
from services.rendering.once_more import WorkDocuments, WorkedOn
from services.rendering.scope import data_of, execution_error, node_without_output, scope_of
from windlass.definition.config_schemas import RAW_MEMBERS
from windlass.definition.modules import STATE_SETTER
from windlass.sdk import PermanentError, TransientError

# Inputs and config together, in one message, whose values take more room than their JSON.
SHOWN_BYTES_MAX: Final = 1024 * 1024
# The same limit for an answer in parts.
IN_PARTS_BYTES_MAX: Final = 64 * 1024 * 1024
# All outputs in the store that the templates see, together. A runner loads no more either.
_LOADED_BYTES_MAX: Final = 64 * 1024 * 1024


class StoredValues(Protocol):
    async def get(self, ref: NamesBlob, owner: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the templates of a run see (`services/rendering/scope.py`)."""

    execution_id: str
    workflow: str
    execution_input: bytes
    state: bytes
    version: int = 0
    create_time: str = ""
    iteration: int = 0
    item: bytes = b""
    error: bytes = b""
    outputs: Mapping[str, Value] = field(default_factory=dict)
    without_output: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    """`documents` has config and inputs. It is a reference when a runner has rendered them and they are large."""

    documents: Value
    has_templates: bool = False
    seen: _Seen | None = None
    overrides: bytes = b""
    # The runner that was given the work has rendered these itself, and hashed them.
    is_hashed: bool = False
    # `documents` is the config alone.
    is_config: bool = False


class RunInputs:
    def __init__(
        self,
        walks: JournalWalks,
        read_lists: Callable[[Execution, str], Awaitable[None]],
        store: StoredValues,
        children: RenderingChildren,
    ) -> None:
        self._walks = walks
        self._read_lists = read_lists
        self._store = store
        self._children = children

    async def of(self, execution_row: Row, run_row: Row, bytes_max: int = SHOWN_BYTES_MAX) -> bytes:
        """JSON with the members `inputs` and `config`. Raises a Refusal that says why they cannot be told."""
        workspace = execution_row["workspace"]
        try:
            execution, run = await self._as_of(execution_row, run_row["number"])
            node = run.work.node
            if not execution.definition.records_inputs:
                raise Refusal("INPUTS_NOT_RECORDED", "the workflow says `recordInputs: false`")
            await self._read_lists(execution, workspace)
            found = _found(execution, run)
            made = await self._made(workspace, node, found, bytes_max)
        except BlobMissing:
            raise Refusal("INPUTS_NOT_FOUND", "the output store has lost an output that they are made of") from None
        except OSError:
            raise DependencyUnavailable("the output store") from None
        except TransientError as failure:
            raise DependencyUnavailable("the process that renders", str(failure), retry_after=1) from None
        except PermanentError as fault:
            raise Refusal("INPUTS_NOT_RENDERED", f"the templates cannot be rendered: {fault}") from None
        if found.is_hashed and not _agree(made, run_row):
            raise Refusal(
                "INPUTS_NOT_RENDERED", "what is rendered now is not what the runner reported, so it is not shown"
            )
        if made.size_bytes > bytes_max:
            message = f"they have {made.size_bytes} bytes as JSON; at most {bytes_max} are shown in this way"
            run_id = f"{execution_row['execution_id']}.{run_row['number']}"
            in_parts = {"try": f"windlass inputs {run_id} --output FILE"} if bytes_max < IN_PARTS_BYTES_MAX else {}
            raise Refusal("INPUTS_TOO_LARGE", message, metadata=in_parts)
        return made.documents

    async def _as_of(self, row: Row, number: int) -> tuple[Execution, Run]:
        """The execution as it was when the run began, or when the config of the run's control node was rendered."""
        execution: Execution | None = None
        is_complete = False
        async with aclosing(self._walks.walk(row)) as steps:
            async for execution, event, _ in steps:
                if is_complete:
                    break
                if not isinstance(event, RunEvent) or event.run != number:
                    continue
                if isinstance(event, WorkSkipped | WorkBlocked):
                    raise Refusal("INPUTS_NOT_FOUND", f"{event.key.node} was passed over, so it has no inputs")
                if isinstance(event, WorkTakenOver):
                    done = f"{execution.origin.origin_execution_id}.{event.origin_run}"
                    raise Refusal("INPUTS_NOT_FOUND", f"{event.key.node} was done in the origin of the fork: {done}")
                is_complete = isinstance(event, ControlRendered) or not _is_rendered_first(execution, event.key)
        if execution is None or len(execution.runs) < number:
            raise Refusal("INPUTS_NOT_FOUND", "a newer version wrote the journal; ask again when all are upgraded")
        return execution, execution.runs[number - 1]

    async def _made(self, workspace: str, node: Node, found: _Found, bytes_max: int) -> WorkedOn:
        loop = asyncio.get_running_loop()
        outputs = found.seen.outputs if found.seen is not None else {}
        refs = {name: value for name, value in outputs.items() if isinstance(value, OutputRef)}
        if sum(ref.size_bytes for ref in refs.values()) > _LOADED_BYTES_MAX:
            raise PermanentError("the stored outputs that they read are too large for any runner")
        raw = RAW_MEMBERS.get(node.module)

        async def load() -> tuple[bytes, dict[str, bytes]]:
            documents = found.documents
            if isinstance(documents, OutputRef):
                documents = await self._store.get(documents, workspace)
            if found.is_config:
                documents = _documents(documents, b"{}")
            return documents, {name: await self._store.get(ref, workspace) for name, ref in refs.items()}

        def render() -> WorkedOn:
            documents, loaded = asyncio.run_coroutine_threadsafe(load(), loop).result()
            work = WorkDocuments(documents, found.overrides, (raw,) if raw else (), found.has_templates, bytes_max)
            scope, data = ({}, {}) if found.seen is None else (scope_of(found.seen), data_of(found.seen, loaded))
            return self._children.ask(workspace, lambda child: child.render_once_more(work, scope, data))

        return await asyncio.wrap_future(self._children.submit(workspace, render))


def _is_rendered_first(execution: Execution, key: WorkKey) -> bool:
    """It is a control node, and a runner renders its config before it begins."""
    node = execution.definition.nodes[key.node]
    if key.iteration and node.body is not None:
        node = node.body
    return node.is_control and node.needs_runner


def _agree(made: WorkedOn, row: Row) -> bool:
    """False: the runner has rendered something else. One that has not reported yet, or died, says nothing."""
    pairs = ((row["inputs_hash"], made.inputs_hash), (row["config_hash"], made.config_hash))
    return all(not reported or reported == here for reported, here in pairs)


def _found(execution: Execution, run: Run) -> _Found:
    work, node = run.work, run.work.node
    if node.is_control:
        return _of_control(execution, run)
    if work.rendered is not None:
        return _Found(work.rendered)
    documents = _documents(node.config, node.inputs)
    if not node.has_templates:
        return _Found(documents, overrides=work.overrides)
    return _Found(documents, True, _seen(execution, run), work.overrides, is_hashed=not run.is_rendering)


def _of_control(execution: Execution, run: Run) -> _Found:
    work, node = run.work, run.work.node
    overrides = work.overrides if node.has_control_inputs else b""
    if isinstance(work.config, OutputRef):
        # The config of a loop. One with inputs is never so large.
        return _Found(work.config, is_config=True)
    if not work.config:
        documents, has_templates = _documents(node.config, _inputs_of_control(node)), node.has_templates
    else:
        documents, has_templates = work.config, False
        if not node.has_control_inputs:
            documents = _documents(work.config, b"{}")
    if node.module == STATE_SETTER:
        # It has its inputs in place of a config.
        members = orjson.loads(documents)
        documents = orjson.dumps({"config": {}, "inputs": members["config"]})
    return _Found(documents, has_templates, _seen(execution, run) if has_templates else None, overrides)


def _inputs_of_control(node: Node) -> bytes:
    return node.inputs if node.has_control_inputs else b"{}"


def _documents(config: bytes, inputs: bytes) -> bytes:
    return b'{"config":%b,"inputs":%b}' % (config, inputs)


def _seen(execution: Execution, run: Run) -> _Seen:
    """As `run_grant` has put it into the grant of the run."""
    work, node, origin = run.work, run.work.node, execution.origin
    nodes = seen_nodes(execution, work)
    compensation = execution.compensation if node.undoes else None
    return _Seen(
        execution_id=execution.execution_id,
        workflow=origin.workflow,
        execution_input=origin.input,
        state=seen_state(execution, node),
        version=origin.version if node.reads_execution else 0,
        create_time=rfc3339(origin.create_time) if node.reads_execution else "",
        iteration=work.key.iteration,
        item=item_of(work) or b"",
        error=b"" if compensation is None else _error_seen(compensation.error),
        outputs=dict(nodes.outputs),
        without_output={
            each.id: node_without_output(each.state, *(each.error.type, each.error.message) if each.error else ("", ""))
            for each in nodes.without_output
        },
    )


def _error_seen(error: FinalError) -> bytes:
    return execution_error(error.node, error.type, error.message)
