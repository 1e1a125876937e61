"""Makes a copy of an execution that was exported elsewhere.

The copy has an id of its own, which is a UUIDv7 of now, and belongs to the workspace that imports it. So all that names
one of these is written anew: the journal, the rows, and the keys of stored outputs. Its rows are read off the state
that its journal adds up to, like those of any execution.

Nothing ever happens to a copy. It has no row in the queue, so no coordinator is ever granted it. Its definition is kept
beside it, and is found by its version id: `import:` and the id of the copy.

Dead letters are left out of its rows, because nobody can resolve them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, Protocol

from services.chassis.blobs import blob_ref, is_blob_of, month_of
from services.chassis.identity.named_tokens import NamedTokens
from services.coordinator.app.pending_append import summary_json
from services.coordinator.app.ports import DefinitionRefused, Definitions, Version
from services.coordinator.core.definition import Definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.events import (
    Event,
    ExecutionAdopted,
    ExecutionFinished,
    ExecutionReopened,
    ExecutionStarted,
    RunLeased,
)
from services.coordinator.core.fold import apply
from services.coordinator.core.projection import approval_row, execution_row, run_row
from services.coordinator.core.recorded_rows import hidden_instance
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant, OutputRef

VERSION_PREFIX: Final = "import:"
# A large output in the output of an execution.
_NAMED: Final = re.compile(rb'\{"\$ref":"([^"\\]+)"')


class ImportOrder(NamedTuple):
    # The first is the id of the copy, the second that of the execution where it ran.
    execution_id: str
    imported_execution_id: str
    workspace: str
    # "": no repeat is recognised.
    request_id: str
    # Canonical JSON, and what its templates read.
    definition: bytes
    references: bytes

    @property
    def month(self) -> str:
        return month_of(self.execution_id)


class ImportedCopy(NamedTuple):
    """The rows of the tables, in the order of their columns (core/projection.py)."""

    execution: tuple[Any, ...]
    runs: Sequence[tuple[Any, ...]]
    approvals: Sequence[tuple[Any, ...]]
    # The number of the last event, the epoch, and the sealed events.
    journal: Sequence[tuple[int, int, bytes]]


class ImportsFull(Exception):
    """The copies of the workspace would have more bytes together than they may."""


class Imports(Protocol):
    async def kept_bytes(self, workspace: str) -> int:
        """The size of all copies of the workspace."""
        ...

    async def earlier(self, workspace: str, request_id: str) -> tuple[str, bytes] | None:
        """The copy that an import with this request id has made, and the digest of what was imported."""
        ...

    async def add(
        self,
        order: ImportOrder,
        digest: bytes,
        copy: ImportedCopy,
        *,
        size_bytes: int,
        kept_bytes_max: int,
        name_outputs: Callable[[], Awaitable[None]],
    ) -> bool:
        """False: there is one with this request id already. Raises NotReplayable for values that no table takes, and
        ImportsFull. `name_outputs` is called right before the commit, and if it fails, nothing is added."""
        ...

    async def definition(self, execution_id: str) -> Definition | None: ...


class ResealingCodec(Protocol):
    def unseal(self, data: bytes) -> Sequence[Any]: ...
    def encode_event(self, event: Event) -> bytes: ...
    def seal(self, execution_id: str, first_seq: int, epoch: int, time: Instant, events: Sequence[bytes]) -> bytes: ...


class ImportedDefinitions:
    """Implements `Definitions` for people who look back: also at executions that were imported."""

    def __init__(self, imports: Imports, others: Definitions) -> None:
        self._imports = imports
        self._others = others

    def cached(self, version_id: str) -> Version | None:
        return self._others.cached(version_id)

    async def get(self, version_id: str) -> Version:
        if not version_id.startswith(VERSION_PREFIX):
            return await self._others.get(version_id)
        definition = await self._imports.definition(version_id.removeprefix(VERSION_PREFIX))
        if definition is None:
            raise DefinitionRefused(
                "VERSION_NOT_FOUND", "the imported execution is not kept any more", is_permanent=True
            )
        # Nothing of a copy is ever granted, so there is nothing to name.
        return Version(definition, EffectKeys(b""), NamedTokens(b"", ""))


def copied(
    order: ImportOrder, definition: Definition, records: Sequence[bytes], codec: ResealingCodec
) -> Generator[None, None, ImportedCopy]:
    """`records` are sealed events, all of them. A copy may be large, so this is done in steps. Raises NotReplayable."""
    execution = Execution(order.execution_id, definition)
    journal: list[tuple[int, int, bytes]] = []
    renaming = _Renaming(order)
    granted = 0
    for record in records:
        stored = codec.unseal(record)
        encoded: list[bytes] = []
        for _, seq, epoch, event in stored:
            granted = _granted(seq, epoch, event, granted)
            renaming.rename(event)
            apply(execution, event)
            encoded.append(codec.encode_event(event))
            yield
        first, last = stored[0], stored[-1]
        sealed = codec.seal(order.execution_id, first.seq, first.epoch, first.event.time, encoded)
        journal.append((last.seq, first.epoch, sealed))
    runs: list[tuple[Any, ...]] = []
    for run in execution.runs:
        runs.append((*run_row(execution, run), ""))
        yield
    approvals: list[tuple[Any, ...]] = []
    for number in sorted(execution.approvals):
        approvals.append(approval_row(execution, number))
        yield
    return ImportedCopy((*execution_row(execution), summary_json(execution)), runs, approvals, journal)


def stored_outputs(event: Event) -> Iterator[OutputRef]:
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, OutputRef):
            yield value


def renamed_output(ref: OutputRef, order: ImportOrder) -> OutputRef:
    made = OutputRef(*blob_ref(order.workspace, order.month, ref.sha256, ref.size_bytes))
    if not is_blob_of(made, order.workspace, order.month) or ref.size_bytes < 0:
        raise NotReplayable(f"the output {ref.key!r} has no SHA-256, or no size")
    return made


def _granted(seq: int, epoch: int, event: Event, granted: int) -> int:
    """The lease under which this event was decided."""
    if (seq == 1) is not isinstance(event, ExecutionStarted):
        raise NotReplayable(f"event {seq} is {type(event).__name__}; a journal begins with one ExecutionStarted")
    if isinstance(event, ExecutionStarted | ExecutionAdopted | ExecutionReopened):
        # A person may have work done again under the lease that there is, or after the end, which takes another one.
        is_same = isinstance(event, ExecutionReopened) and event.epoch == granted
        if event.epoch <= granted and not is_same:
            raise NotReplayable(f"event {seq} has the lease {event.epoch}, and {granted} was before it")
        granted = event.epoch
    if epoch != granted:
        raise NotReplayable(f"event {seq} has the lease {epoch}, and {granted} was granted")
    return granted


class _Renaming:
    def __init__(self, order: ImportOrder) -> None:
        self._order = order
        # The keys of the outputs, by those that they had.
        self._keys: dict[bytes, bytes] = {}

    def rename(self, event: Event) -> None:
        order = self._order
        for field in fields(event):
            value = getattr(event, field.name)
            if isinstance(value, OutputRef):
                made = renamed_output(value, order)
                self._keys[value.key.encode()] = made.key.encode()
                setattr(event, field.name, made)
        if isinstance(event, ExecutionStarted):
            version_id = f"{VERSION_PREFIX}{order.execution_id}"
            event.origin = replace(event.origin, workspace=order.workspace, version_id=version_id, request_id="")
        elif isinstance(event, RunLeased):
            # Whoever knows the instance of a runner could report in its name.
            event.instance_id = hidden_instance(event.instance_id)
        elif isinstance(event, ExecutionFinished) and isinstance(event.output, bytes):
            event.output = self._leaf_outputs(event.output)

    def _leaf_outputs(self, output: bytes) -> bytes:
        """The output of an execution names those of its nodes that are large (core/outputs.py)."""
        mine = b'{"$run":"%b.' % self._order.execution_id.encode()
        theirs = b'{"$run":"%b.' % self._order.imported_execution_id.encode()
        return _NAMED.sub(lambda named: b'{"$ref":"%b"' % self._keys.get(named[1], named[1]), output).replace(
            theirs, mine
        )
