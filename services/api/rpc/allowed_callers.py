"""The callers of each method. The process does not start when a served method is missing here.

VIEWER reads, WORKFLOW also changes workflows and executions, ADMIN also manages the keys of its workspace. The system
key manages workspaces and keys, and cannot read executions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.chassis.identity.callers import Rule, members, services, system

READ: Final = members("VIEWER", "WORKFLOW", "ADMIN")
WRITE: Final = members("WORKFLOW", "ADMIN")
OWN_KEYS: Final = members("ADMIN") | system()
# The longest wait of a start, and time to answer.
WAIT_SECONDS_MAX: Final = 3_600.0 + 30.0

_WORKFLOWS: Final = "/windlass.api.v1.WorkflowService"
_EXECUTIONS: Final = "/windlass.api.v1.ExecutionService"
_RUNS: Final = "/windlass.api.v1.RunService"
_WORKSPACES: Final = "/windlass.api.v1.WorkspaceService"
_KEYS: Final = "/windlass.api.v1.ApiKeyService"
_CATALOG: Final = "/windlass.catalog.v1.CatalogService"

RULES: Final[Mapping[str, Rule]] = {
    f"{_WORKFLOWS}/ApplyWorkflow": WRITE.judging_text(),
    f"{_WORKFLOWS}/ValidateWorkflow": READ.judging_text(),
    f"{_WORKFLOWS}/GetWorkflow": READ,
    f"{_WORKFLOWS}/ListWorkflows": READ,
    f"{_WORKFLOWS}/ListWorkflowVersions": READ,
    f"{_WORKFLOWS}/ArchiveWorkflow": WRITE,
    f"{_WORKFLOWS}/RestoreWorkflow": WRITE,
    f"{_EXECUTIONS}/StartExecution": WRITE.within(WAIT_SECONDS_MAX).with_trace(),
    f"{_EXECUTIONS}/BatchStartExecutions": WRITE.within(WAIT_SECONDS_MAX).judging_text(),
    f"{_EXECUTIONS}/GetExecution": READ,
    f"{_EXECUTIONS}/ListExecutions": READ,
    f"{_EXECUTIONS}/WatchExecution": READ.within(None),
    f"{_EXECUTIONS}/CancelExecution": WRITE,
    f"{_EXECUTIONS}/ListEvents": READ,
    f"{_RUNS}/ListRuns": READ,
    f"{_RUNS}/GetRun": READ,
    f"{_WORKSPACES}/CreateWorkspace": system(),
    f"{_WORKSPACES}/GetWorkspace": system(),
    f"{_WORKSPACES}/ListWorkspaces": system(),
    f"{_WORKSPACES}/UpdateWorkspace": system(),
    f"{_WORKSPACES}/DeleteWorkspace": system(),
    f"{_KEYS}/CreateApiKey": OWN_KEYS,
    f"{_KEYS}/ListApiKeys": OWN_KEYS,
    f"{_KEYS}/RevokeApiKey": OWN_KEYS,
    f"{_CATALOG}/GetVersion": services("coordinator"),
    f"{_CATALOG}/IdentifyKey": services("coordinator"),
}
