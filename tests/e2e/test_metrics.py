"""The metrics of each process have the names that operators are promised, and values that follow the work."""

from collections.abc import AsyncIterator

import psycopg
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.support.api import Client, new_workspace
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack

SERVICES = ("api", "dispatcher", "coordinator", "runner")
EVERYWHERE = {"event_loop_lag_seconds"}
PROMISED = {
    "api": {"grpc_server_handled_total", "grpc_server_handling_seconds_count"},
    "dispatcher": {
        "dispatcher_items_processed_total",
        "dispatcher_released_at_capacity_total",
        "dispatcher_dispatch_failures_total",
        "dispatcher_dispatch_latency_seconds_count",
    },
    "coordinator": {
        "coordinator_execution_retries_count",
        "coordinator_flush_events_count",
        "coordinator_flush_seconds_count",
        "coordinator_lease_latency_seconds_count",
    },
    "runner": {"runner_runs_ended_total", "runner_runs_going"},
}
# These are measured every ten seconds, and only for workspaces with work.
PER_WORKSPACE = {
    "dispatcher_queue_depth",
    "dispatcher_queue_age_seconds",
    "dispatcher_running",
    "dispatcher_lease_age_seconds",
}
MEASURED_SECONDS = 25.0
EXECUTIONS = 6
RETRIES = 2

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(stack: Stack) -> Client:
    made = Client(stack)
    config = {"type": "TRANSIENT", "message": "again", "untilAttempt": RETRIES + 1}
    retry = {"attempts": RETRIES + 1, "initialDelay": "0.02s", "factor": 1}
    await made.apply("measured", [{"id": "flaky", "module": "fail@1", "config": config, "retry": retry}])
    await made.apply("asleep", [{"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}])
    return made


async def scrape(stack: Stack, service: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(await stack.metrics(service))
        for sample in family.samples
    }


def total(samples: Samples, name: str) -> float:
    return sum(value for (sample, _), value in samples.items() if sample == name)


def grown(before: Samples, after: Samples, name: str) -> float:
    return total(after, name) - total(before, name)


async def test_promised_names_are_there_from_the_start(stack: Stack, client: Client) -> None:
    for service in SERVICES:
        names = {name for name, _ in await scrape(stack, service)}
        assert (PROMISED[service] | EVERYWHERE) <= names, service


async def test_work_moves_what_counts_it(stack: Stack, client: Client) -> None:
    before = {service: await scrape(stack, service) for service in SERVICES}
    for _ in range(EXECUTIONS):
        await client.run("measured")

    async def settled() -> dict[str, Samples] | None:
        now = {service: await scrape(stack, service) for service in SERVICES}
        name = "coordinator_execution_retries_count"
        return now if grown(before["coordinator"], now["coordinator"], name) == EXECUTIONS else None

    after = await eventually(settled, 10, "every execution to be counted as finished")

    def growth(service: str, name: str) -> float:
        return grown(before[service], after[service], name)

    runs = EXECUTIONS * (RETRIES + 1)
    assert growth("dispatcher", "dispatcher_items_processed_total") == EXECUTIONS
    assert growth("dispatcher", "dispatcher_dispatch_latency_seconds_count") == EXECUTIONS
    assert growth("dispatcher", "dispatcher_dispatch_failures_total") == 0
    assert growth("coordinator", "coordinator_execution_retries_sum") == EXECUTIONS * RETRIES
    assert growth("coordinator", "coordinator_lease_latency_seconds_count") == runs
    assert growth("runner", "runner_runs_ended_total") == runs
    # Each has a start, a lease, an outcome and an end, and retries add some. There are never more appends than events.
    assert growth("coordinator", "coordinator_flush_events_sum") >= runs * 2 + EXECUTIONS * 2
    appends = growth("coordinator", "coordinator_flush_seconds_count")
    assert 0 < appends == growth("coordinator", "coordinator_flush_events_count")
    assert growth("coordinator", "coordinator_flush_seconds_sum") > 0
    assert growth("api", "grpc_server_handled_total") >= EXECUTIONS


async def test_queue_slots_and_leases_are_shown_per_workspace_while_it_has_work(stack: Stack) -> None:
    one_slot = await new_workspace(stack, "full", executions_max=1)
    await one_slot.apply("long", [{"id": "hold", "module": "delay@1", "config": {"duration": "60s"}}])
    before = await scrape(stack, "dispatcher")
    started = await one_slot.start_many("long", 3)
    full = (("workspace", "full"),)

    async def shown() -> Samples | None:
        samples = await scrape(stack, "dispatcher")
        return samples if samples.get(("dispatcher_queue_depth", full)) == 2 else None

    samples = await eventually(shown, MEASURED_SECONDS, "two to be shown as waiting")
    assert {name for name, labels in samples if labels == full} >= PER_WORKSPACE
    assert samples["dispatcher_running", full] == 1
    assert samples["dispatcher_queue_age_seconds", full] > 0
    assert samples["dispatcher_lease_age_seconds", full] >= 0
    assert grown(before, samples, "dispatcher_released_at_capacity_total") >= 1
    for execution in reversed(started):
        await one_slot.cancel(execution.id)

    async def gone() -> bool:
        return (await scrape(stack, "dispatcher")).get(("dispatcher_running", full), 0) == 0

    await eventually(gone, MEASURED_SECONDS, "the slot to be free again")


async def test_executions_that_cannot_start_are_counted(stack: Stack) -> None:
    """The definition is deleted before their turn comes."""
    workspace = await new_workspace(stack, "doomed", executions_max=1)
    await workspace.apply("first", [{"id": "hold", "module": "delay@1", "config": {"duration": "60s"}}])
    await workspace.apply("lost", [{"id": "only", "module": "noop@1"}])
    first = await workspace.start("first")
    await workspace.start("lost")
    async with await psycopg.AsyncConnection.connect(stack.superuser_url()) as connection:
        gone = await connection.execute("DELETE FROM api.workflow_versions WHERE workflow = 'lost'")
        assert gone.rowcount == 1
    before = await scrape(stack, "dispatcher")
    await workspace.cancel(first.id)

    async def counted() -> bool:
        after = await scrape(stack, "dispatcher")
        failures = grown(before, after, "dispatcher_dispatch_failures_total")
        return failures >= 1 and grown(before, after, "dispatcher_dead_letters_total") == 1

    await eventually(counted, 20, "the failure to be counted")


async def test_an_end_after_a_take_over_is_counted_once(stack: Stack, client: Client) -> None:
    """A parked execution is granted again for its cancel, so it is adopted and ended in one turn."""
    parked = "coordinator_executions_parked_total"
    before = await scrape(stack, "coordinator")
    started = await client.start("asleep")

    async def has_parked() -> bool:
        return grown(before, await scrape(stack, "coordinator"), parked) == 1

    await eventually(has_parked, 20, "the sleeper to be parked")
    await client.cancel(started.id)
    after = await scrape(stack, "coordinator")
    assert grown(before, after, "coordinator_executions_adopted_total") == 1
    assert grown(before, after, "coordinator_executions_finished_total") == 1


async def test_no_identifier_of_an_execution_is_a_label(stack: Stack, client: Client) -> None:
    execution = await client.run("measured")
    for service in SERVICES:
        labels = {value for _, pairs in await scrape(stack, service) for _, value in pairs}
        assert not [label for label in labels if execution.id in label], service
