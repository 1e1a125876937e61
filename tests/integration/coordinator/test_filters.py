"""A filter means the same as a statement on the table and, by the rules of api, in memory."""

from __future__ import annotations

import itertools
import random
from typing import Any

import orjson
import psycopg
import pytest
import pytest_asyncio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from services.api.peers.coordinators import execution_of
from services.api.rpc.filter_text import parse
from services.chassis.grpc.errors import Refusal
from services.chassis.postgres.compiled import compiled
from services.chassis.postgres.database import Database
from services.coordinator.rpc.public_executions import execution_record
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.store.conditions import ConditionUnknown, execution_list
from services.coordinator.store.reads import PostgresReads
from tests.support.filters import LABEL_KEYS, TEXTS, TIMES, trees, written
from windlass.api.v1.resources_pb2 import Execution
from windlass.coordinator.v1 import reads_pb2 as pb

# Nothing here asks for stored outputs, past states or explanations.
NO_JOURNAL: Any = (None, None, None, None)

ROWS = 150
STATES = ("RUNNING", "WAITING", "SUCCESS", "FAILED", "CANCELLED", "TIMEOUT")
TABLE_TIMES = [time for time in TIMES if time.startswith("2026")]
COLUMNS = [
    *("execution_id", "state", "workflow", "version", "priority", "trigger_type", "caller"),
    *("create_time", "start_time", "end_time", "error_node", "error_type", "error_message"),
    *("parent_execution_id", "origin_execution_id", "labels"),
]
INSERT = f"""
INSERT INTO executions ({", ".join(COLUMNS)}, epoch, last_seq, runs, retries, cost_tokens, workspace, version_id,
    holder, request_id, traceparent, input)
VALUES ({", ".join(f"%({column})s" for column in COLUMNS)}, 1, 1, 0, 0, 0, 'team', 'v', '', '', '', '')
"""


def id_of(number: int) -> str:
    return f"01a1ef02-cd5c-7fc1-ac68-{number:012x}"


def row(number: int, chance: random.Random) -> dict[str, Any]:
    failed = chance.random() < 0.5
    labels = {key: chance.choice(TEXTS) for key in LABEL_KEYS if chance.random() < 0.5}
    return {
        "execution_id": id_of(number),
        "state": chance.choice(STATES),
        "workflow": chance.choice([text for text in TEXTS if text]),
        "version": chance.randint(1, 3),
        "priority": chance.randint(1, 3),
        "trigger_type": chance.choice(Execution.Trigger.Type.values()),
        "caller": chance.choice(TEXTS),
        "create_time": chance.choice(TABLE_TIMES),
        "start_time": chance.choice(TABLE_TIMES),
        "end_time": chance.choice([*TABLE_TIMES, None]),
        "error_node": chance.choice(TEXTS) if failed else None,
        "error_type": chance.choice(TEXTS) if failed else None,
        "error_message": chance.choice(TEXTS) if failed else None,
        "parent_execution_id": chance.choice(TEXTS),
        "origin_execution_id": chance.choice(TEXTS),
        "labels": orjson.dumps(labels).decode(),
    }


@pytest_asyncio.fixture(loop_scope="session")
async def reads(tables: Database, database: Any) -> PostgresReads:
    """Reads of a table with executions of all kinds, which are the same in every run."""
    chance = random.Random(160)
    with psycopg.connect(database.url("coordinator")) as connection:
        connection.execute("DELETE FROM executions")
        for number in range(ROWS):
            connection.execute(INSERT, row(number, chance))
    return PostgresReads(tables)


def asked_for(text: str, **more: Any) -> pb.ListExecutionsRequest:
    given: dict[str, Any] = {"workspace": "team", "ascending": True, "limit": ROWS} | more
    return pb.ListExecutionsRequest(conditions=parse(text).conditions, **given)


async def listed(reads: PostgresReads, text: str, **more: Any) -> list[str]:
    found = await ReadServicer(reads, lambda workspace: ((), ()), *NO_JOURNAL).ListExecutions(
        asked_for(text, **more), None
    )
    return [each.execution.id for each in found.executions]


async def test_table_and_memory_are_of_one_mind(reads: PostgresReads) -> None:
    stored = await reads.executions([id_of(number) for number in range(ROWS)])
    shown = {each["execution_id"]: execution_of(execution_record(each)) for each in stored}
    asked: list[str] = []

    @settings(max_examples=250, database=None, phases=[Phase.generate])
    @given(st.lists(trees(), min_size=1, max_size=3))
    def gather(filters: list[pb.Condition]) -> None:
        asked.append(" AND ".join(f"({written(each)})" for each in filters))

    gather()
    hits = 0
    for text in asked:
        expected = sorted(id_ for id_, execution in shown.items() if parse(text).matches(execution))
        assert await listed(reads, text) == expected, text
        hits += 0 < len(expected) < ROWS
    assert hits > len(asked) / 4, "most filters fit all or nothing: that proves little"


@pytest.mark.parametrize(
    "part", ["labels.region {} a", "error.type {} a", 'end_time {} "2026-11-01T00:00:00Z"', "trigger.caller {} a"]
)
async def test_row_without_a_value_fits_no_comparison_but_every_negated_one(reads: PostgresReads, part: str) -> None:
    has = f"{part.split(maxsplit=1)[0]}:*"
    absent = set(await listed(reads, f"NOT {has}"))
    assert 0 < len(absent) < ROWS
    for comparator in ("=", "<", "<=", ">", ">="):
        found = set(await listed(reads, part.format(comparator)))
        assert not found & absent
        assert {*await listed(reads, f"-{part.format(comparator)}")} == {*map(id_of, range(ROWS))} - found
    assert absent < set(await listed(reads, part.format("!=")))


@pytest.mark.parametrize("is_ascending", [True, False])
async def test_pages_of_a_filter_are_its_whole_list(reads: PostgresReads, is_ascending: bool) -> None:
    text = "(state = FAILED OR state = RUNNING) AND NOT labels:region"
    whole = await listed(reads, text, ascending=is_ascending)
    found: list[str] = []
    while page := await listed(
        reads, text, ascending=is_ascending, limit=4, from_execution_id=found[-1] if found else ""
    ):
        found += page
    assert found == whole
    assert len(found) > 4


@pytest.mark.parametrize(
    "text",
    [
        "state = FAILED",
        'workflow = "a" AND state != FAILED',
        'create_time > "2026-11-01T00:00:00Z"',
        "labels.region = a AND priority >= 2",
        "(state = FAILED OR labels:region) AND NOT error.type = a*",
    ],
)
async def test_lists_read_along_the_index(reads: PostgresReads, tables: Database, text: str) -> None:
    request = asked_for(text, from_execution_id=id_of(ROWS), ascending=False, limit=10)
    sql, parameters = compiled(execution_list(request))

    async def explained(connection: psycopg.AsyncConnection[Any]) -> list[str]:
        # A table as small as this is read faster as a whole, but then it would have to be sorted.
        await connection.execute("SET LOCAL enable_seqscan = off")
        await connection.execute("SET LOCAL enable_bitmapscan = off")
        answer = await connection.execute(f"EXPLAIN {sql}".encode(), parameters)
        return [line for (line,) in await answer.fetchall()]

    plan = "\n".join(await tables.transaction(explained))
    assert "Index Scan Backward" in plan
    assert "_workspace_execution_id_idx" in plan
    assert "Sort" not in plan.replace("Sort Key", "")


CONDITIONS = {
    "no form and no operator": pb.Condition(),
    "an operator to come": pb.Condition(field="workflow", operator=99, value="a"),  # type: ignore[arg-type] # a number
    "a field to come": pb.Condition(field="mood", operator=pb.Condition.EQUAL, value="good"),
    "the presence of a field to come": pb.Condition(present="mood"),
    "a pattern of no text": pb.Condition(pattern=pb.Pattern(field="version", text="1", open_end=True)),
    "nothing joined": pb.Condition(any_of=pb.Conditions()),
    "a number that is none": pb.Condition(field="version", operator=pb.Condition.EQUAL, value="x"),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("is_inside", [False, True])
async def test_what_is_not_understood_is_refused(reads: PostgresReads, name: str, is_inside: bool) -> None:
    condition = CONDITIONS[name]
    if is_inside:
        joined = pb.Conditions(conditions=[pb.Condition(present="workflow"), condition])
        condition = pb.Condition(negated=pb.Condition(any_of=joined))
    request = pb.ListExecutionsRequest(workspace="team", conditions=[condition])
    with pytest.raises(ConditionUnknown):
        execution_list(request)
    servicer = ReadServicer(reads, lambda workspace: ((), ()), *NO_JOURNAL)
    with pytest.raises(Refusal) as refused:
        await servicer.ListExecutions(request, None)
    assert refused.value.reason == "INVALID_REQUEST"


async def test_no_text_of_a_caller_is_in_the_statement(reads: PostgresReads) -> None:
    marks = (f"mark{number}" for number in itertools.count())
    text = (
        f"workflow = {next(marks)} (labels.{next(marks)} < {next(marks)} OR error.type:*{next(marks)}*)"
        f" NOT labels:{next(marks)} trigger.caller != {next(marks)}*"
    )
    sql, parameters = compiled(execution_list(asked_for(text)))
    assert "mark" not in sql
    assert {each for each in parameters.values() if "mark" in str(each)} == {f"mark{n}" for n in range(6)}
    assert await listed(reads, text) == []
