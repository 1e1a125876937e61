"""One rule for each method of the contract says who may call it, and no method is without one."""

from __future__ import annotations

import pytest

from services.api.rpc.allowed_callers import RULES
from services.chassis.identity.callers import CallerKind, Identity
from windlass.api.v1 import (
    approvals_pb2,
    circuits_pb2,
    dead_letters_pb2,
    executions_pb2,
    exports_pb2,
    runs_pb2,
    workflows_pb2,
    workspaces_pb2,
)
from windlass.catalog.v1 import catalog_pb2, children_pb2

_PUBLIC = (
    approvals_pb2,
    circuits_pb2,
    dead_letters_pb2,
    executions_pb2,
    exports_pb2,
    runs_pb2,
    workflows_pb2,
    workspaces_pb2,
)
FILES = (*_PUBLIC, catalog_pb2, children_pb2)
METHODS = sorted(
    f"/{service.full_name}/{method.name}"
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
CALLERS = {
    "viewer": Identity(CallerKind.MEMBER, "k", "w", "VIEWER"),
    "workflow": Identity(CallerKind.MEMBER, "k", "w", "WORKFLOW"),
    "admin": Identity(CallerKind.MEMBER, "k", "w", "ADMIN"),
    "system": Identity(CallerKind.SYSTEM, "k"),
    "runner": Identity(CallerKind.RUNNER, "k"),
    "coordinator": Identity(CallerKind.SERVICE, "coordinator"),
    "dispatcher": Identity(CallerKind.SERVICE, "dispatcher"),
    "api": Identity(CallerKind.SERVICE, "api"),
    "nobody": Identity(CallerKind.ANONYMOUS, ""),
}
READERS = {"viewer", "workflow", "admin"}
WRITERS = {"workflow", "admin"}
# The callers by the beginning of the method's name. The rules are stated a second time on purpose.
MEMBERS = {
    "Get": READERS,
    "List": READERS,
    "Watch": READERS,
    "Validate": READERS,
    "Apply": WRITERS,
    "Archive": WRITERS,
    "Restore": WRITERS,
    "Start": WRITERS,
    "BatchStart": WRITERS,
    "Cancel": WRITERS,
    "Pause": WRITERS,
    "Resume": WRITERS,
    "Explain": READERS,
    "Export": READERS,
    "Import": WRITERS,
    "Replay": READERS,
    "Signal": WRITERS,
    "Decide": WRITERS,
    "Retry": WRITERS,
    "Fork": WRITERS,
    "Reset": WRITERS,
    "Open": WRITERS,
    "Requeue": WRITERS,
    "Discard": WRITERS,
    "Mark": WRITERS,
    "Quarantine": WRITERS,
    "Bulk": WRITERS,
    "Stop": WRITERS,
}
# The completion token in their requests is the whole permission.
OPEN = {f"/windlass.api.v1.RunService/{name}" for name in ("CompleteRun", "FailRun", "HeartbeatRun")}


def expected(method: str) -> set[str]:
    service, name = method.rsplit("/", 1)
    if method in OPEN:
        return set(CALLERS)
    if service.endswith(("CatalogService", "ChildService")):
        return {"coordinator"}
    if service.endswith("WorkspaceService"):
        return {"system"}
    if service.endswith("ApiKeyService"):
        return {"admin", "system"}
    return next(allowed for prefix, allowed in MEMBERS.items() if name.startswith(prefix))


def test_every_method_has_a_rule_and_every_rule_a_method() -> None:
    assert sorted(RULES) == METHODS


@pytest.mark.parametrize("method", METHODS)
def test_method_lets_in_those_it_is_for(method: str) -> None:
    assert {name for name, who in CALLERS.items() if RULES[method].allows(who)} == expected(method)
    assert RULES[method].is_open == (method in OPEN)
