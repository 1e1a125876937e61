"""The callers of each method. The process does not start when a served method is missing here.

VIEWER reads, WORKFLOW also changes workflows and executions, ADMIN also manages the keys of its workspace. The system
key manages workspaces and keys, and cannot read executions. A request that carries no document, input or list is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.chassis.grpc.limits import SMALL_BYTES_MAX
from services.chassis.identity.callers import Rule, anyone, members, services, system

READ_DOCUMENT: Final = members("VIEWER", "WORKFLOW", "ADMIN")
WRITE_DOCUMENT: Final = members("WORKFLOW", "ADMIN")
READ: Final = READ_DOCUMENT.receiving(SMALL_BYTES_MAX)
WRITE: Final = WRITE_DOCUMENT.receiving(SMALL_BYTES_MAX)
SYSTEM: Final = system().receiving(SMALL_BYTES_MAX)
OWN_KEYS: Final = (members("ADMIN") | system()).receiving(SMALL_BYTES_MAX)
# The longest wait of a start, and time to answer.
WAIT_SECONDS_MAX: Final = 3_600.0 + 30.0
# A dry run of a bulk job reads up to 100,000 executions.
COUNT_SECONDS_MAX: Final = 120.0
# 64 MiB at 2 Mbit/s.
OUTPUT_SECONDS_MAX: Final = 300.0

_WORKFLOWS: Final = "/windlass.api.v1.WorkflowService"
_EXECUTIONS: Final = "/windlass.api.v1.ExecutionService"
_RUNS: Final = "/windlass.api.v1.RunService"
_APPROVALS: Final = "/windlass.api.v1.ApprovalService"
_CIRCUITS: Final = "/windlass.api.v1.CircuitService"
_DEAD_LETTERS: Final = "/windlass.api.v1.DeadLetterService"
_WORKSPACES: Final = "/windlass.api.v1.WorkspaceService"
_KEYS: Final = "/windlass.api.v1.ApiKeyService"
_EXPORTS: Final = "/windlass.api.v1.ExportService"
_CATALOG: Final = "/windlass.catalog.v1.CatalogService"

RULES: Final[Mapping[str, Rule]] = {
    f"{_WORKFLOWS}/ApplyWorkflow": WRITE_DOCUMENT.judging_text(),
    f"{_WORKFLOWS}/ValidateWorkflow": READ_DOCUMENT.judging_text(),
    f"{_WORKFLOWS}/GetWorkflow": READ,
    f"{_WORKFLOWS}/ListWorkflows": READ,
    f"{_WORKFLOWS}/ListWorkflowVersions": READ,
    f"{_WORKFLOWS}/ArchiveWorkflow": WRITE,
    f"{_WORKFLOWS}/RestoreWorkflow": WRITE,
    f"{_EXECUTIONS}/StartExecution": WRITE_DOCUMENT.within(WAIT_SECONDS_MAX).with_trace(),
    f"{_EXECUTIONS}/BatchStartExecutions": WRITE_DOCUMENT.within(WAIT_SECONDS_MAX).judging_text(),
    f"{_EXECUTIONS}/GetExecution": READ,
    f"{_EXECUTIONS}/ListExecutions": READ,
    f"{_EXECUTIONS}/WatchExecution": READ.within(None),
    f"{_EXECUTIONS}/CancelExecution": WRITE,
    f"{_EXECUTIONS}/PauseExecution": WRITE,
    f"{_EXECUTIONS}/ResumeExecution": WRITE,
    f"{_EXECUTIONS}/SignalExecution": WRITE_DOCUMENT,
    f"{_EXECUTIONS}/RetryExecution": WRITE_DOCUMENT,
    f"{_EXECUTIONS}/ForkExecution": WRITE_DOCUMENT.with_trace(),
    f"{_EXECUTIONS}/BulkExecutions": WRITE_DOCUMENT.within(COUNT_SECONDS_MAX),
    f"{_EXECUTIONS}/GetBulkJob": READ,
    f"{_EXECUTIONS}/ListBulkJobs": READ,
    f"{_EXECUTIONS}/StopBulkJob": WRITE,
    f"{_EXECUTIONS}/ListEvents": READ,
    f"{_EXECUTIONS}/ExplainExecution": READ,
    f"{_RUNS}/ListRuns": READ,
    f"{_DEAD_LETTERS}/ListDeadLetters": READ,
    f"{_DEAD_LETTERS}/ListDeadLetterGroups": READ,
    f"{_DEAD_LETTERS}/GetDeadLetter": READ,
    f"{_DEAD_LETTERS}/RequeueDeadLetter": WRITE_DOCUMENT,
    f"{_DEAD_LETTERS}/DiscardDeadLetter": WRITE,
    f"{_DEAD_LETTERS}/MarkDeadLetterFixed": WRITE_DOCUMENT,
    f"{_DEAD_LETTERS}/QuarantineRun": WRITE,
    f"{_DEAD_LETTERS}/BulkResolveDeadLetters": WRITE_DOCUMENT.within(WAIT_SECONDS_MAX),
    f"{_RUNS}/GetRun": READ,
    f"{_RUNS}/GetRunOutput": READ.within(OUTPUT_SECONDS_MAX),
    f"{_RUNS}/GetRunInputs": READ,
    f"{_RUNS}/GetRunInputsJson": READ.within(OUTPUT_SECONDS_MAX),
    # The completion token in the request is the whole permission.
    f"{_RUNS}/CompleteRun": anyone(),
    f"{_RUNS}/FailRun": anyone(),
    f"{_RUNS}/HeartbeatRun": anyone(),
    f"{_APPROVALS}/ListApprovals": READ,
    f"{_APPROVALS}/GetApproval": READ,
    f"{_APPROVALS}/DecideApproval": WRITE,
    f"{_EXPORTS}/ExportExecution": READ.within(OUTPUT_SECONDS_MAX),
    f"{_EXPORTS}/ReplayExecution": READ.within(OUTPUT_SECONDS_MAX),
    # Each message has the size of a document; the handler bounds all together.
    f"{_EXPORTS}/ReplayExport": READ_DOCUMENT.within(OUTPUT_SECONDS_MAX),
    f"{_EXPORTS}/ImportExecution": WRITE_DOCUMENT.within(OUTPUT_SECONDS_MAX),
    f"{_CIRCUITS}/ListCircuits": READ,
    f"{_CIRCUITS}/GetCircuit": READ,
    f"{_CIRCUITS}/ResetCircuit": WRITE,
    f"{_CIRCUITS}/OpenCircuit": WRITE,
    f"{_WORKSPACES}/CreateWorkspace": SYSTEM,
    f"{_WORKSPACES}/GetWorkspace": SYSTEM,
    f"{_WORKSPACES}/ListWorkspaces": SYSTEM,
    f"{_WORKSPACES}/UpdateWorkspace": SYSTEM,
    f"{_WORKSPACES}/DeleteWorkspace": SYSTEM,
    f"{_KEYS}/CreateApiKey": OWN_KEYS,
    f"{_KEYS}/ListApiKeys": OWN_KEYS,
    f"{_KEYS}/RevokeApiKey": OWN_KEYS,
    "/windlass.catalog.v1.ChildService/StartChild": services("coordinator"),
    f"{_CATALOG}/GetVersion": services("coordinator"),
    f"{_CATALOG}/IdentifyKey": services("coordinator"),
}
