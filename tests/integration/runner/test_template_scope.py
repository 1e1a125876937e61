"""What the templates of a grant see, whether the runner renders them itself or leaves them to its child."""

from typing import Any

import orjson
import pytest
import pytest_asyncio

from services.chassis.grpc.timestamps import put_micros
from services.runner.core.failures import FailureClass
from services.runner.core.job import Succeeded
from services.runner.peers.translate import job_of
from tests.support.runner_bench import EXECUTION_ID, Bench
from windlass.coordinator.v1 import sessions_pb2 as pb

CREATED = 1_790_000_000_123_456


@pytest_asyncio.fixture(loop_scope="session")
async def bench(tmp_path: Any) -> Any:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def grant_of(template: str) -> pb.RunGrant:
    grant = pb.RunGrant(execution_id=EXECUTION_ID, workspace="default", workflow="w", node="n", module="transform@1")
    grant.lease.lease_id, grant.lease.epoch, grant.attempt = f"{EXECUTION_ID}.1", 2, 1
    grant.inputs, grant.has_templates = b'{"x": "%b"}' % template.encode(), True
    grant.state = b'{"region": "eu"}'
    grant.outputs["good"].json = b'{"n": 7}'
    grant.without_output["failed"].state = "FAILED"
    grant.without_output["failed"].error_type, grant.without_output["failed"].error_message = "BOOM", "it broke"
    for state in ("SKIPPED", "BLOCKED", "PENDING"):
        grant.without_output[state.lower()].state = state
    error = grant.execution_error
    error.node, error.type, error.message = "ship", "BOOM", "it broke"
    grant.workflow_version = 3
    put_micros(grant.execution_create_time, CREATED)
    return grant


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("nodes.good.output.n", 7),
        ("nodes.good.state", "SUCCESS"),
        ("nodes.good.error", None),
        ("nodes.failed.error.type ~ nodes.failed.error.message", "BOOMit broke"),
        ("nodes.failed.state", "FAILED"),
        ("nodes.failed.output", None),
        ("nodes.skipped.state", "SKIPPED"),
        ("nodes.skipped.output", None),
        ("nodes.blocked.state ~ nodes.pending.state", "BLOCKEDPENDING"),
        ("nodes.skipped.output or nodes.good.output", {"n": 7}),
        ("nodes.good.output or nodes.skipped.output", {"n": 7}),
        ("nodes.skipped.output.n if nodes.skipped.output else 0", 0),
        ("execution.id", EXECUTION_ID),
        ("execution.workflow ~ execution.version", "w3"),
        ("execution.create_time", "2026-09-21T14:13:20.123456Z"),
        ("state.region", "eu"),
        ("error.node ~ error.type ~ error.message", "shipBOOMit broke"),
    ],
)
async def test_templates_see_every_node_before_theirs(
    bench: Bench, expression: str, value: Any, is_plain: bool
) -> None:
    # A list is left to the child.
    text = f"{{{{ {expression} }}}}" if is_plain else f"{{{{ [{expression}] }}}}"
    outcome = await bench.outcome(job_of(grant_of(text), 0))
    assert isinstance(outcome, Succeeded), outcome
    assert isinstance(outcome.output, bytes)
    (seen,) = orjson.loads(outcome.output).values()
    assert seen == (value if is_plain else [value])


@pytest.mark.parametrize(
    "expression",
    [
        "nodes.skipped.output.n",
        "nodes.skipped.error.type",
        "nodes.good.error.type",
        "nodes.failed.output.n",
        "nodes.failed.nothing",
        "nodes.unknown.output",
        "execution.nothing",
        "state.nothing",
    ],
)
async def test_a_path_that_is_not_there_fails_the_node(bench: Bench, expression: str) -> None:
    failure = await bench.failure(job_of(grant_of(f"{{{{ {expression} }}}}"), 0))
    assert failure == (FailureClass.PERMANENT, "TEMPLATE_ERROR")
