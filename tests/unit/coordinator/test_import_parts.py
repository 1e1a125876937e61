"""What comes of an export that is imported, when the output store or the export is not whole."""

from __future__ import annotations

import hashlib
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from services.chassis.blobs import DirectoryBlobs, blob_ref, month_of
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import SystemClock
from services.coordinator.app.importing import ImportedCopy, ImportOrder, ImportsFull
from services.coordinator.app.replays import Replays
from services.coordinator.core.recorded_rows import RowsHash, folded_rows, value_text
from services.coordinator.core.values import OutputRef
from services.coordinator.rpc.export_parts import ExportParts, compiled
from services.coordinator.rpc.import_parts import ImportDesk
from services.coordinator.store import codec
from tests.support.story import EXECUTION_ID, Story, node
from tests.unit.coordinator.test_replays import granted_and_taken_back, part_of
from windlass.definition.examination import examine
from windlass.journal.v1.export_pb2 import ExportHeader, ExportPart

VALUE = b'"large"'
SHA256 = hashlib.sha256(VALUE).hexdigest()
DOCUMENT = {"name": "story", "nodes": [node("a")], "edges": []}
REFERENCES = orjson.dumps(examine(DOCUMENT).references)
COPY_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ac"
ORDER = ImportOrder(COPY_ID, EXECUTION_ID, "here", "", orjson.dumps(DOCUMENT), REFERENCES)
HEADER = ExportHeader(format=1, execution_id=EXECUTION_ID, workflow="story", version=1)
NOTHING: Any = None


class Copies:
    """Keeps the copies that are added."""

    def __init__(self) -> None:
        self.added: list[ImportedCopy] = []
        self.kept = 0
        self.size_bytes = 0

    async def earlier(self, workspace: str, request_id: str) -> tuple[str, bytes] | None:
        return None

    async def kept_bytes(self, workspace: str) -> int:
        return self.kept

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
        await name_outputs()
        self.added.append(copy)
        self.size_bytes = size_bytes
        return True


def exported() -> list[ExportPart]:
    """An execution with one large output."""
    story, ref = Story([node("a")]), OutputRef(*blob_ref("default", month_of(EXECUTION_ID), SHA256, len(VALUE)))
    story.start()
    story.assign("a")
    story.succeed("a", ref)
    parts = [part_of(seq, event) for seq, event in enumerate(story.journal, 1)]
    digest = RowsHash()
    for (table, number), columns in folded_rows(story.execution):
        part = ExportPart()
        part.row.table, part.row.number, part.row.columns = table, number, value_text(columns)
        digest.add((table, number), part.row.columns)
        parts.append(part)
    output, end = ExportPart(), ExportPart()
    output.output.key, output.output.data = ref.key, VALUE
    end.end.events, end.end.rows, end.end.outputs = len(story.journal), digest.count, 1
    end.end.recorded_hash = str(digest)
    return [*parts, output, end]


def desk_of(copies: Any, store: Path, kept_bytes_max: int = sys.maxsize) -> ImportDesk:
    clock = SystemClock()
    replays = Replays(NOTHING, NOTHING, clock)
    return ImportDesk(replays, copies, codec, DirectoryBlobs(store), clock, kept_bytes_max=kept_bytes_max)


async def given(parts: list[ExportPart]) -> AsyncIterator[ExportPart]:
    for part in parts:
        yield part


async def imported(parts: list[ExportPart], store: Path) -> list[ImportedCopy]:
    copies = Copies()
    made = await desk_of(copies, store).take(ORDER, HEADER, given(parts))
    assert made == (COPY_ID, False)
    return copies.added


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_copy_names_the_output_by_its_own_key(tmp_path: Path) -> None:
    (copy,) = await imported(exported(), tmp_path)
    (file,) = files_in(tmp_path)
    assert file.read_bytes() == VALUE
    assert str(file.relative_to(tmp_path)) in copy.runs[0]


@pytest.mark.parametrize("bytes_more", [0, -1])
async def test_an_export_that_does_not_fit_beside_the_copies_that_are_kept_is_refused(
    bytes_more: int, tmp_path: Path
) -> None:
    parts, copies = exported(), Copies()
    copies.kept = 1_000
    size_bytes = len(ORDER.definition) + sum(part.ByteSize() for part in parts)
    desk = desk_of(copies, tmp_path, copies.kept + size_bytes + bytes_more)
    if not bytes_more:
        await desk.take(ORDER, HEADER, given(parts))
        assert copies.size_bytes == size_bytes
        return
    with pytest.raises(Refusal) as refused:
        await desk.take(ORDER, HEADER, given(parts))
    assert (refused.value.reason, copies.added) == ("IMPORTED_BYTES_EXCEEDED", [])


async def test_a_workspace_that_has_no_room_stores_no_output_of_an_export(tmp_path: Path) -> None:
    copies = Copies()
    copies.kept = 1
    with pytest.raises(Refusal):
        await desk_of(copies, tmp_path, 1).take(ORDER, HEADER, given(exported()))
    assert files_in(tmp_path) == []


async def test_a_repeat_is_answered_although_there_is_no_room(tmp_path: Path) -> None:
    class Full(Copies):
        digest = b""

        async def earlier(self, workspace: str, request_id: str) -> tuple[str, bytes] | None:
            return COPY_ID, self.digest

        async def add(self, order: ImportOrder, digest: bytes, copy: ImportedCopy, **_: Any) -> bool:
            self.digest = digest
            return False

    made = await desk_of(Full(), tmp_path, 0).take(ORDER._replace(request_id="once"), HEADER, given(exported()))
    assert made == (COPY_ID, True)


@pytest.mark.parametrize("fault", ["its end", "another file with its request id", "no room any more"])
async def test_nothing_is_left_of_the_outputs_of_an_import_that_is_refused_after_they_came(
    fault: str, tmp_path: Path
) -> None:
    class Refusing(Copies):
        async def add(self, *_: Any, **__: Any) -> bool:
            if fault == "no room any more":
                raise ImportsFull
            return False

    parts = exported()
    if fault == "its end":
        parts[-1].end.recorded_hash = "another"
    with pytest.raises(Refusal):
        await desk_of(Refusing(), tmp_path).take(ORDER, HEADER, given(parts))
    assert files_in(tmp_path) == []


async def test_an_output_store_that_is_away_is_told_as_such(tmp_path: Path) -> None:
    (no_folder := tmp_path / "file").write_text("")
    with pytest.raises(DependencyUnavailable, match="the output store"):
        await imported(exported(), no_folder / "store")


async def test_no_output_is_stored_of_an_export_whose_events_and_rows_are_not_whole(tmp_path: Path) -> None:
    parts = exported()
    row = next(part for part in parts if part.row.table == "executions")
    row.row.columns = row.row.columns.replace("SUCCESS", "FAILED")
    with pytest.raises(Refusal, match="does not add up"):
        await imported(parts, tmp_path)
    assert files_in(tmp_path) == []


async def many_parts(times: int) -> AsyncIterator[ExportPart]:
    """An execution that goes on, whose run was granted and taken back so often. Only one part is there at a time."""
    story = Story([node("a")])
    story.start()
    key, seq = story.work("a").key, 1
    yield part_of(seq, story.journal[0])
    for number in range(1, times + 1):
        for event in granted_and_taken_back(key, number):
            seq += 1
            yield part_of(seq, event)
    end = ExportPart()
    end.end.events = seq
    yield end


# Of a file with EVENTS_MAX events, that is 400 MiB.
HELD_PER_EVENT: Final = 2_048


@pytest.mark.parametrize("is_import", [False, True], ids=["replay", "import"])
async def test_what_is_held_of_an_export_is_little_for_each_event(is_import: bool, tmp_path: Path) -> None:
    times, replays = 5_000, Replays(NOTHING, NOTHING, SystemClock())
    copies = Copies()
    tracemalloc.start()
    try:
        if is_import:
            await desk_of(copies, tmp_path).take(ORDER, HEADER, many_parts(times))
        else:
            parts = ExportParts(codec, many_parts(times))
            replayed = await replays.of_export(EXECUTION_ID, compiled(ORDER.definition, b"{}"), parts.events_and_rows())
            assert replayed.events == 2 * times + 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(copy.runs) for copy in copies.added] == [times] * is_import
    assert peak_bytes < 2 * times * HELD_PER_EVENT, f"{peak_bytes} bytes were held of {2 * times} events"
