"""Lists that are read from the output store, and outputs that are put into it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.chassis.blobs import BlobMissing, DirectoryBlobs
from services.coordinator.app.loop_store import LoopStore
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.core.commands import Command, FinishLoop, StartLoop
from services.coordinator.core.items import ITEMS_BYTES_MAX, LoopConfig
from services.coordinator.core.loops import OUTPUT_BYTES_MAX
from services.coordinator.core.values import OutputRef, WorkKey
from services.coordinator.peers.dispatch import granted_execution
from services.coordinator.rpc.run_messages import forwarded_command
from tests.support.story import EXECUTION_ID, Story, begun, node, started
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

MONTH, WORKSPACE, LOOP = "2024-11", "w", WorkKey("l")
BODY = {"module": "noop@1"}
ANSWER_SECONDS = 60


class Inbox:
    """Takes the place of the owned executions: it keeps the commands."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[Command] = asyncio.Queue()

    def put(self, owned: OwnedExecution, command: Command) -> None:
        self.commands.put_nowait(command)

    async def next(self) -> Any:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self.commands.get()


class FlakyBlobs(DirectoryBlobs):
    """A store whose disk fails once."""

    has_failed = False

    async def get(self, ref: Any, owner: str) -> bytes:
        if not self.has_failed:
            self.has_failed = True
            raise OSError("the disk is away")
        return await super().get(ref, owner)


@asynccontextmanager
async def running(blobs: DirectoryBlobs) -> AsyncIterator[tuple[LoopStore, Inbox]]:
    inbox = Inbox()
    store = LoopStore(inbox, blobs)  # type: ignore[arg-type] # only takes commands
    task = asyncio.create_task(store.run())
    try:
        yield store, inbox
    finally:
        task.cancel()


def owned_by(story: Story) -> OwnedExecution:
    grant = ExecutionGrant()
    grant.lease.lease_id, grant.lease.epoch = EXECUTION_ID, 1
    grant.start.workspace = WORKSPACE
    owned = granted_execution(grant, "c", forwarded_command)
    owned.execution = story.execution
    return owned


async def kept(blobs: DirectoryBlobs, value: bytes) -> OutputRef:
    return OutputRef(*await blobs.put(value, WORKSPACE, MONTH))


async def listed(blobs: DirectoryBlobs, config: bytes) -> Story:
    """A loop whose rendered config is in the store."""
    story = begun(node("l", "for_each@1", config={"items": "{{ input.ids }}", "body": BODY}))
    story.succeed("l", await kept(blobs, config))
    return story


def gathered(*outputs: Any) -> Story:
    story = started(node("l", "for_each@1", config={"items": [0] * len(outputs), "body": BODY}))
    story.assign()
    for item, output in enumerate(outputs, 1):
        story.succeed("l", output, item=item)
    return story


async def asked(blobs: DirectoryBlobs, story: Story) -> Any:
    """The command that the last effect of the story brings about."""
    async with running(blobs) as (store, inbox):
        store.ask(owned_by(story), story.effects[-1])
        return await inbox.next()


async def test_a_list_is_read_and_taken_apart(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    story = await listed(blobs, b'{"items": [1, {"a": "b"}, null], "maxParallel": 2}')
    command = await asked(blobs, story)
    assert command == StartLoop(LOOP, LoopConfig({"maxParallel": 2}, [b"1", b'{"a":"b"}', b"null"]))
    story.when(command)
    assert story.ready_items == [1, 2]


@pytest.mark.parametrize(
    ("config", "fault"),
    [(b"[1]", "the rendered config is no object"), (b'{"items":"%b"}' % (b"x" * ITEMS_BYTES_MAX), "bytes together")],
)
async def test_a_list_that_is_none_is_a_fault(tmp_path: Path, config: bytes, fault: str) -> None:
    blobs = DirectoryBlobs(tmp_path)
    command = await asked(blobs, await listed(blobs, config))
    assert command.config is None
    assert fault in command.fault


async def test_a_list_is_read_again_after_the_disk_was_away(tmp_path: Path) -> None:
    blobs = FlakyBlobs(tmp_path)
    assert isinstance(await asked(blobs, await listed(blobs, b'{"items":[1]}')), StartLoop)
    assert blobs.has_failed


async def test_a_successor_reads_the_lists_of_the_loops_under_way(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    story = await listed(blobs, b'{"items":[4,5,6]}')
    story.when(await asked(blobs, story))
    again = story.again()
    async with running(blobs) as (store, _):
        await store.read_lists(again.execution, WORKSPACE)
    again.assign()
    assert [effect.item for effect in again.effects] == [b"4", b"5", b"6"]


async def test_a_successor_that_cannot_read_a_list_says_so(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    story = await listed(blobs, b'{"items":[4,5,6]}')
    story.when(await asked(blobs, story))
    async with running(blobs) as (store, _):
        with pytest.raises(BlobMissing):
            await store.read_lists(story.again().execution, "another workspace")


async def test_an_output_is_put_together_from_inline_and_stored_ones(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    large = orjson.dumps("x" * 600_000)
    story = gathered(b'{"n":1}', await kept(blobs, large), b"3")
    command = await asked(blobs, story)
    assert isinstance(command, FinishLoop)
    assert command.output is not None
    value = await blobs.get(command.output, WORKSPACE)
    assert value == b'[{"n":1},%b,3]' % large
    assert (command.output.sha256, command.output.size_bytes) == (hashlib.sha256(value).hexdigest(), len(value))
    story.when(command)
    assert (story.state, story.run("l").output) == ("SUCCESS", command.output)


async def test_an_output_that_is_too_large_for_the_store_fails_the_loop(tmp_path: Path) -> None:
    """The outputs have just the limit, and the list has brackets and a comma besides."""
    blobs = DirectoryBlobs(tmp_path)
    half = await kept(blobs, orjson.dumps("x" * (OUTPUT_BYTES_MAX // 2 - 2)))
    story = gathered(half, half)
    story.when(await asked(blobs, story))
    assert (story.state, story.execution.error.type) == ("FAILED", "OUTPUT_TOO_LARGE")


def dropped(owned: OwnedExecution, _story: Story) -> None:
    owned.is_dropped = True


def cancelled(_owned: OwnedExecution, story: Story) -> None:
    story.cancel()


@pytest.mark.parametrize("gone", [dropped, cancelled])
async def test_what_nobody_wants_any_more_is_left_out(
    tmp_path: Path, gone: Callable[[OwnedExecution, Story], None]
) -> None:
    blobs = DirectoryBlobs(tmp_path)
    story, other = await listed(blobs, b'{"items":[1]}'), await listed(blobs, b'{"items":[2]}')
    owned, effect = owned_by(story), story.effects[-1]
    gone(owned, story)
    async with running(blobs) as (store, inbox):
        store.ask(owned, effect)
        store.ask(owned_by(other), other.effects[-1])
        assert (await inbox.next()).config.items == [b"2"]
        assert inbox.commands.empty()
