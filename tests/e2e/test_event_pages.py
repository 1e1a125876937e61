"""ListEvents pages through a journal, from one event to another, and no event is left out or told twice."""

from __future__ import annotations

from itertools import pairwise

import grpc
import pytest
import pytest_asyncio

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb

COUNT = 6


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    made = Client(shared_stack)
    ids = [f"n{number}" for number in range(COUNT)]
    edges = [{"from": one, "to": other} for one, other in pairwise(ids)]
    await made.apply("told", [{"id": each, "module": "noop@1"} for each in ids], edges=edges)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def last_seq(client: Client) -> tuple[str, int]:
    """An execution that has ended, and the number of its last event."""
    ended = await client.run("told")
    return ended.id, ended.last_seq


async def listed(client: Client, request: pb.ListEventsRequest) -> tuple[list[int], list[int]]:
    """The numbers of all events, and how many each page had."""
    seqs: list[int] = []
    sizes: list[int] = []
    while True:
        answer = await client.call(client.executions.ListEvents, request)
        seqs += [event.seq for event in answer.events]
        sizes.append(len(answer.events))
        if not answer.next_page_token:
            return seqs, sizes
        request.page_token = answer.next_page_token


@pytest.mark.parametrize("page_size", [1, 3, 0])
async def test_pages_end_with_the_event_that_was_named(
    client: Client, last_seq: tuple[str, int], page_size: int
) -> None:
    execution_id, last = last_seq
    assert last > 2 * COUNT
    for after_seq, as_of_seq in ((0, 0), (0, 1), (0, 7), (4, 7), (6, 7), (3, last), (last - 1, 0), (0, last + 5)):
        request = pb.ListEventsRequest(
            execution_id=execution_id, after_seq=after_seq, as_of_seq=as_of_seq, page_size=page_size
        )
        seqs, sizes = await listed(client, request)
        assert seqs == list(range(after_seq + 1, min(as_of_seq or last, last) + 1)), (after_seq, as_of_seq)
        assert all(size <= (page_size or 50) for size in sizes)
        assert 0 not in sizes, "no page is empty when there are events"


async def test_nothing_is_behind_the_event_that_was_named(client: Client, last_seq: tuple[str, int]) -> None:
    for after_seq, as_of_seq in ((7, 7), (8, 7), (last_seq[1], 0)):
        request = pb.ListEventsRequest(execution_id=last_seq[0], after_seq=after_seq, as_of_seq=as_of_seq)
        assert await listed(client, request) == ([], [0])


async def test_a_page_of_a_list_with_another_end_is_refused(client: Client, last_seq: tuple[str, int]) -> None:
    request = pb.ListEventsRequest(execution_id=last_seq[0], as_of_seq=7, page_size=2)
    token = (await client.call(client.executions.ListEvents, request)).next_page_token
    other = pb.ListEventsRequest(execution_id=last_seq[0], as_of_seq=8, page_token=token)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.call(client.executions.ListEvents, other)
    assert remote_error(refused.value).reason == "INVALID_REQUEST"
