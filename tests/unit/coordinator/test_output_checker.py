"""Reports of stored outputs wait for the output store. Only its answer counts, and nothing else waits with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from services.chassis.blobs import BlobRef, DirectoryBlobs, month_of
from services.chassis.lease.frames import Report
from services.coordinator.app import unchecked_reports
from services.coordinator.app.output_checker import OutputChecker
from services.coordinator.app.owned_execution import Input, ReceivedReport
from services.coordinator.core.commands import ReportFailure, ReportSuccess
from services.coordinator.peers.dispatch import received_message
from services.coordinator.rpc.run_messages import forwarded_command, received_report
from tests.support.probe import until
from tests.support.story import EXECUTION_ID
from tests.unit.coordinator.test_owned_executions import executions, granted
from windlass.coordinator.v1.sessions_pb2 import RunReport
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

SECONDS = 10.0


class World:
    """An owned execution, its runner's sessions, and an output store that can be held up."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.forwarded: list[ReceivedReport] = []
        self.executions = executions(forward=lambda session, report: self.forwarded.append(report))
        self.owned = granted(self.executions)
        self.asked = self.answered = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self._blobs = DirectoryBlobs(directory)

    async def sizes(self, keys: Sequence[str]) -> Sequence[int | OSError]:
        self.asked += 1
        await self.answers.wait()
        sizes = await self._blobs.sizes(keys)
        self.answered += 1
        return sizes

    async def kept(self) -> BlobRef:
        return await self._blobs.put(b'"value"', "", month_of(EXECUTION_ID))

    def report(self, ref: BlobRef | None, report_id: str = "r", session: object = None) -> ReceivedReport:
        """A report arrives, of an output that is stored, or of one that came with it."""
        received = report_of(ref, report_id)
        session = session or SimpleNamespace(data=SimpleNamespace(serves=lambda workspace: True))
        self.executions.reported(cast("Any", session), [received])
        return received

    async def inbox(self) -> list[Input]:
        """What is in the inbox, once there is something."""
        await until(lambda: self.owned.inbox, SECONDS, "an input")
        return self.owned.inbox


def report_of(ref: BlobRef | None, report_id: str) -> ReceivedReport:
    message = RunReport()
    message.head.report_id, message.head.lease_id, message.head.epoch = report_id, f"{EXECUTION_ID}.1", 1
    if ref is None:
        message.succeeded.output.json = b"{}"
    else:
        stored = message.succeeded.output.ref
        stored.key, stored.sha256, stored.size_bytes = ref
    return received_report(Report(report_id, f"{EXECUTION_ID}.1", 1, message), "i1")


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(unchecked_reports, "PUT_OFF_SECONDS", 0.01)
    made = World(tmp_path / "outputs")
    running = asyncio.create_task(OutputChecker(made.executions, made.sizes).run())
    yield made
    running.cancel()
    await asyncio.wait([running])


async def test_stored_output_is_checked_before_its_report_is_in_the_inbox(world: World) -> None:
    world.answers.clear()
    received = report_of(await world.kept(), "m")
    message = ExecutionMessage(message_id="m", execution_id=EXECUTION_ID)
    message.run_report = cast("RunReport", received.message).SerializeToString()
    world.executions.deliver([received_message(message, forwarded_command)])
    await until(lambda: world.asked, SECONDS, "the check")
    assert not world.owned.inbox
    world.answers.set()
    (input_,) = await world.inbox()
    assert isinstance(input_.command, ReportSuccess)


@pytest.mark.parametrize("lost", ["the store", "a directory of it"])
async def test_report_waits_while_the_store_is_away(world: World, lost: str) -> None:
    ref = await world.kept()
    place = world.directory if lost == "the store" else (world.directory / ref.key).parent
    aside = place.rename(place.with_name("aside"))
    if lost == "the store":
        place.mkdir()  # where its disk is mounted
    else:
        place.write_text("a file, where a directory has been")
    world.report(ref)
    await until(lambda: world.asked > 2, SECONDS, "further tries")
    world.report(None, "another")
    assert [each.source.report and each.source.report.report_id for each in world.owned.inbox] == ["another"]
    world.owned.inbox.clear()
    place.rmdir() if lost == "the store" else place.unlink()
    aside.rename(place)
    (input_,) = await world.inbox()
    assert isinstance(input_.command, ReportSuccess)


async def test_value_that_the_store_has_not_fails_its_run(world: World) -> None:
    ref = await world.kept()
    (world.directory / ref.key).unlink()
    world.report(ref)
    (input_,) = await world.inbox()
    assert isinstance(input_.command, ReportFailure)
    assert input_.command.error.type == "OUTPUT_REF_INVALID"


async def test_report_that_is_repeated_while_it_waits_counts_once_and_is_answered_on_its_newest_stream(
    world: World,
) -> None:
    world.answers.clear()
    ref = await world.kept()
    sessions = [SimpleNamespace(data=SimpleNamespace(serves=lambda workspace: True)) for _ in range(3)]
    for session in sessions:
        world.report(ref, session=session)
        await asyncio.sleep(0)
    world.answers.set()
    (input_,) = await world.inbox()
    assert cast("object", input_.source.session) is sessions[-1]


async def test_another_report_under_the_same_id_is_checked_itself(world: World) -> None:
    world.answers.clear()
    ref = await world.kept()
    world.report(ref)
    await until(lambda: world.asked, SECONDS, "the check")
    world.report(ref._replace(size_bytes=1))
    world.answers.set()
    (input_,) = await world.inbox()
    assert isinstance(input_.command, ReportFailure)


async def test_execution_that_is_given_away_takes_its_reports_along_although_the_store_hangs(world: World) -> None:
    world.answers.clear()
    received = world.report(await world.kept())
    await until(lambda: world.asked, SECONDS, "the check")
    world.executions.drop(world.owned)
    assert world.forwarded == [received]
    world.answers.set()
    await until(lambda: world.answered, SECONDS, "the answer")
    await asyncio.sleep(0)
    assert world.forwarded == [received]
    assert not world.owned.inbox
