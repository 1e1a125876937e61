"""A coordinator uses the answers of api."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import orjson
import pytest
from google.rpc import error_details_pb2, status_pb2

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import SystemClock
from services.coordinator.app.ports import DefinitionRefused
from services.coordinator.peers import catalog
from services.coordinator.peers.catalog import ApiReplicas, CatalogDefinitions, CatalogKeys
from windlass.catalog.v1 import catalog_pb2 as pb


def answered(code: grpc.StatusCode, reason: str = "") -> grpc.aio.AioRpcError:
    status = status_pb2.Status(code=code.value[0], message="no")
    if reason:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="windlass"))
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, "no")


class Line:
    """Channels and the address book of two replicas. Each answers every call with `answer`, or fails with it."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked: list[str] = []
        self.forgotten: list[str] = []

    async def read(self) -> frozenset[str]:
        return frozenset({"a:1", "b:2"})

    async def changes(self) -> AsyncIterator[frozenset[str]]:
        yield frozenset({"a:1", "b:2"})
        yield frozenset({"b:2"})

    def get(self, address: str) -> Any:
        self.asked.append(address)
        return SimpleNamespace(unary_unary=lambda *_, **__: self._call)

    async def _call(self, request: Any, timeout: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def forget(self, address: str) -> None:
        self.forgotten.append(address)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def replicas(line: Any) -> ApiReplicas:
    return ApiReplicas(line, line, line.forget)


async def test_only_a_version_that_is_not_there_is_refused_for_good(line: Line, replicas: ApiReplicas) -> None:
    definitions = CatalogDefinitions(replicas)
    line.answer = answered(grpc.StatusCode.NOT_FOUND, "VERSION_NOT_FOUND")
    with pytest.raises(DefinitionRefused) as refused:
        await definitions.get("v")
    assert refused.value.is_permanent


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
        (grpc.StatusCode.UNAUTHENTICATED, "KEY_INVALID"),
        (grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED"),
        (grpc.StatusCode.UNIMPLEMENTED, ""),
        (grpc.StatusCode.NOT_FOUND, ""),
    ],
)
async def test_what_ails_api_is_no_fault_of_the_version(
    line: Line, replicas: ApiReplicas, code: grpc.StatusCode, reason: str
) -> None:
    definitions = CatalogDefinitions(replicas)
    line.answer = answered(code, reason)
    with pytest.raises(DependencyUnavailable):
        await definitions.get("v")
    document = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}
    line.answer = pb.GetVersionResponse(definition=orjson.dumps(document), effect_secret=b"s" * 32)
    assert (await definitions.get("v")).definition.roots == ("a",)


async def test_a_node_sees_what_api_found_that_its_templates_read(line: Line, replicas: ApiReplicas) -> None:
    """Text that only looks like a reference is none."""
    inputs = {"t": "list of nodes: {{ input.x }}"}
    nodes = [{"id": name, "module": "transform@1", "inputs": inputs} for name in "abcd"]
    edges = [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}, {"from": "c", "to": "d"}]
    line.answer = pb.GetVersionResponse(
        definition=orjson.dumps({"name": "w", "nodes": nodes, "edges": edges}),
        template_references=orjson.dumps({"c": ["a"], "d": None}),
        effect_secret=b"s" * 32,
    )
    definition = (await CatalogDefinitions(replicas).get("v")).definition
    assert [node.references for node in definition.graph] == [(), (), ("a",), ("a", "b", "c")]


async def test_a_definition_that_does_not_compile_may_do_so_in_a_newer_coordinator(
    line: Line, replicas: ApiReplicas
) -> None:
    definitions = CatalogDefinitions(replicas)
    line.answer = pb.GetVersionResponse(definition=b'{"name":"w","nodes":[{"id":"a"}]}')
    with pytest.raises(DefinitionRefused) as refused:
        await definitions.get("v")
    assert (refused.value.reason, refused.value.is_permanent) == ("DEFINITION_CORRUPT", False)


async def test_a_key_is_refused_only_when_api_says_so(line: Line, replicas: ApiReplicas) -> None:
    keys = CatalogKeys(replicas, SystemClock())
    line.answer = answered(grpc.StatusCode.NOT_FOUND, "API_KEY_NOT_FOUND")
    with pytest.raises(Refusal) as refused:
        await keys.identify("k")
    assert refused.value.reason == "KEY_INVALID"
    for failure in (answered(grpc.StatusCode.INTERNAL), answered(grpc.StatusCode.UNAUTHENTICATED, "KEY_INVALID")):
        line.answer = failure
        with pytest.raises(DependencyUnavailable):
            await keys.identify("k")


async def test_a_key_is_confirmed_by_asking_anew(line: Line, replicas: ApiReplicas) -> None:
    keys = CatalogKeys(replicas, SystemClock())
    line.answer = pb.IdentifyKeyResponse(key_id="k1")
    await keys.identify("k")
    await keys.identify("k")
    assert len(line.asked) == 1
    await keys.confirm("k1")
    assert len(line.asked) == 2
    line.answer = answered(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(DependencyUnavailable):
        await keys.confirm("k1")
    line.answer = answered(grpc.StatusCode.NOT_FOUND, "API_KEY_NOT_FOUND")
    with pytest.raises(Refusal):
        await keys.confirm("k1")
    with pytest.raises(Refusal):
        await keys.identify("k")
    with pytest.raises(Refusal):
        await keys.confirm("never seen")


async def test_a_key_that_is_in_use_is_not_forgotten_for_newer_ones(
    line: Line, replicas: ApiReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "KEYS_MAX", 3)
    keys = CatalogKeys(replicas, SystemClock())
    line.answer = pb.IdentifyKeyResponse(key_id="long here")
    await keys.identify("long here")
    for number in range(5):
        line.answer = pb.IdentifyKeyResponse(key_id=f"k{number}")
        await keys.identify(f"k{number}")
        line.answer = pb.IdentifyKeyResponse(key_id="long here")
        await keys.confirm("long here")


async def test_each_replica_is_asked_before_one_is_asked_twice(line: Line, replicas: ApiReplicas) -> None:
    definitions = CatalogDefinitions(replicas)
    line.answer = answered(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(DependencyUnavailable):
        await definitions.get("v")
    assert sorted(line.asked) == ["a:1", "b:2"]
    line.answer = answered(grpc.StatusCode.INTERNAL)
    for _ in range(2):
        with pytest.raises(DependencyUnavailable):
            await definitions.get("v")
    assert sorted(line.asked[2:]) == ["a:1", "b:2"]


async def test_a_replica_that_is_gone_is_forgotten(line: Line, replicas: ApiReplicas) -> None:
    await replicas.run()
    assert line.forgotten == ["a:1"]
