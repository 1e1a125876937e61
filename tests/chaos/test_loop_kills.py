"""A loop goes on through the deaths of its coordinators and its runners: no item is done again, the order is kept."""

from pathlib import Path

import pytest

from tests.chaos.history import History, calls_in, faults_of
from tests.chaos.verify import SHOWN, TAKE_OVER, verify
from tests.support.api import Client, output_of
from tests.support.probe import until
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2

MODULES = Path(__file__).with_name("ledger_modules.py")
ITEMS = 600
# Each item is a text of some size, so that the list is in the output store.
TEXT = "x" * 300
# The loop is hit when so many items have begun.
HITS = ((100, "coordinator", 0), (200, "runner", 0), (300, "coordinator", 1), (400, "runner", 1))


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_a_loop_goes_on_where_it_was_when_its_coordinator_and_its_runners_die(ledger: Path) -> None:
    # The output has the id of its run. Items take so long that the loop still goes on when the last process is killed.
    body = {"module": "ledger.put@1", "config": {"seconds": 0.5, "bytes": 60}, "inputs": {"n": "{{ item.n }}"}}
    items = "{{ input.items + input.items }}"
    node = {
        "id": "each",
        "module": "for_each@1",
        "idempotent": True,
        "config": {"items": items, "maxParallel": 20, "body": body},
    }
    after = {"id": "runs", "module": "transform@1", "inputs": {"of": "{{ nodes.each.output|length }}"}}
    async with running_stack(coordinators=2, runners=2, modules=[MODULES]) as stack:
        client = Client(stack)
        await client.apply("loop", [node, after], edges=[{"from": "each", "to": "runs"}])
        half = [{"n": number, "text": TEXT} for number in range(ITEMS // 2)]
        execution = await client.start("loop", input={"items": half})
        for count, service, replica in HITS:
            await _begun(ledger, count)
            await _kill(stack, service, replica)
        ended = await client.end_of(execution.id)
        assert ended.state == resources_pb2.Execution.SUCCESS, ended.error
        runs = await client.runs_of(execution.id)
        done = {run.iteration: run for run in runs if run.iteration and run.state == resources_pb2.Run.SUCCESS}
        assert sorted(done) == list(range(1, ITEMS + 1))
        assert len([run for run in runs if run.iteration and run.state == resources_pb2.Run.SUCCESS]) == ITEMS
        (loop,) = [run for run in runs if run.node == "each" and not run.iteration and run.HasField("output")]
        told = [each["padding"].strip() for each in await output_of(client, loop.id)]
        assert told == [done[iteration].id for iteration in range(1, ITEMS + 1)], "each place has its item's output"
        history = History({ended.id: ended}, {ended.id: runs}, calls_in(ledger))
        assert faults_of(history) == []
        await verify(stack, SHOWN | {TAKE_OVER})


async def _begun(ledger: Path, count: int) -> None:
    await until(lambda: len(calls_in(ledger)) >= 2 * count, 60, f"{count} items to have begun")


async def _kill(stack: Stack, service: str, replica: int) -> None:
    """The next one is killed when this one is there again, because three dead runners in a row make poison."""
    pid = stack.kill(service, replica)
    await stack.ready_again(service, replica, pid)
