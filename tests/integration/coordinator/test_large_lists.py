"""A page of a list ends where its rows are large together, and the caller learns that there are more behind it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import orjson
import psycopg
import pytest
import pytest_asyncio

from services.chassis.postgres.database import Database
from services.coordinator.rpc.large_pages import PAGE_BYTES_MAX
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.store.reads import PostgresReads
from tests.integration.coordinator.test_filters import INSERT, NO_JOURNAL, id_of, row
from windlass.coordinator.v1 import reads_pb2 as pb

ROWS = 120
# As an execution with 2,000 nodes has it, and the form of an approval.
SUMMARY = {"succeeded": [f"node_with_a_long_name_{number:05}" for number in range(2_000)]}
FORM = orjson.dumps({"description": "x" * 60_000})
APPROVAL = """
INSERT INTO approvals (execution_id, number, required, create_time, state, workspace, workflow, node, title, form,
    assignees, decisions)
VALUES (%s, 1, 1, now(), 'PENDING', 'team', 'w', 'n', 't', %s, '[]', '[]')
"""


@pytest_asyncio.fixture(loop_scope="session")
async def servicer(tables: Database, database: Any) -> AsyncIterator[ReadServicer]:
    chance = random.Random(7)
    with psycopg.connect(database.url("coordinator")) as connection:
        connection.execute("DELETE FROM executions")
        for number in range(ROWS):
            connection.execute(INSERT, row(number, chance))
            connection.execute(APPROVAL, (id_of(number), FORM))
        connection.execute("UPDATE executions SET summary = %s", (orjson.dumps(SUMMARY).decode(),))
    yield ReadServicer(PostgresReads(tables), lambda workspace: ((), ()), *NO_JOURNAL)
    with psycopg.connect(database.url("coordinator")) as connection:
        connection.execute("DELETE FROM executions")
        connection.execute("DELETE FROM approvals")


async def executions(servicer: ReadServicer, after: str, *, takes_cut: bool) -> tuple[list[str], bool, int]:
    """The ids, whether the page was cut, and its size."""
    request = pb.ListExecutionsRequest(workspace="team", from_execution_id=after, limit=ROWS, takes_cut=takes_cut)
    found = await servicer.ListExecutions(request, None)
    return [each.execution.id for each in found.executions], found.is_cut, found.ByteSize()


async def approvals(servicer: ReadServicer, after: str, *, takes_cut: bool) -> tuple[list[str], bool, int]:
    after_id = f"{after}.1" if after else ""
    request = pb.ListApprovalsRequest(workspace="team", after_approval_id=after_id, limit=ROWS, takes_cut=takes_cut)
    found = await servicer.ListApprovals(request, None)
    return [each.approval.id.partition(".")[0] for each in found.approvals], found.is_cut, found.ByteSize()


@pytest.mark.parametrize("list_of", [executions, approvals])
async def test_a_page_of_large_rows_is_cut_and_the_pages_are_the_whole_list(
    servicer: ReadServicer, list_of: Any
) -> None:
    expected = [id_of(number) for number in reversed(range(ROWS))]
    found: list[str] = []
    pages, is_cut = 0, True
    while is_cut:
        ids, is_cut, size_bytes = await list_of(servicer, found[-1] if found else "", takes_cut=True)
        assert size_bytes < PAGE_BYTES_MAX + 1_000
        found, pages = found + ids, pages + 1
    assert found == expected
    assert pages > 1


@pytest.mark.parametrize("list_of", [executions, approvals])
async def test_a_caller_that_takes_a_short_page_for_the_last_one_gets_all_rows(
    servicer: ReadServicer, list_of: Any
) -> None:
    ids, is_cut, size_bytes = await list_of(servicer, "", takes_cut=False)
    assert (len(ids), is_cut) == (ROWS, False)
    assert size_bytes > PAGE_BYTES_MAX
