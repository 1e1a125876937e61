"""The refusals of api. Each has a message for the caller, and the command that inspects or fixes the matter.

The reasons are the contract (docs/errors.md). The chassis maps them to status codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from services.api.app.identifiers import is_execution_id, is_run_id
from services.chassis.grpc.errors import QuotaViolation, Refusal, Violation
from windlass.definition.faults import Fault, place_of

QUEUE_RETRY_SECONDS = 5.0


def workflow_not_found(workflow: str) -> Refusal:
    message = f"there is no workflow {workflow!r} in this workspace"
    return _refusal("WORKFLOW_NOT_FOUND", message, "windlass workflow list", workflow=workflow)


def version_not_found(workflow: str, version: int) -> Refusal:
    message = f"workflow {workflow!r} has no version {version}"
    hint = f"windlass workflow versions {workflow}"
    return _refusal("VERSION_NOT_FOUND", message, hint, workflow=workflow, version=str(version))


def version_id_not_found(version_id: str) -> Refusal:
    return Refusal("VERSION_NOT_FOUND", "there is no such version", metadata={"version_id": version_id})


def workflow_archived(workflow: str) -> Refusal:
    message = f"workflow {workflow!r} is archived"
    return _refusal("WORKFLOW_ARCHIVED", message, f"windlass workflow restore {workflow}", workflow=workflow)


def etag_mismatch(subject: str, inspect: str) -> Refusal:
    message = f"{subject!r} was changed meanwhile; read it again and decide anew"
    return _refusal("ETAG_MISMATCH", message, inspect, subject=subject)


def invalid_definition(faults: Iterable[Fault]) -> Refusal:
    violations = [
        Violation(
            f"definition.{fault.path}" if fault.path else "definition",
            fault.reason,
            ": ".join(filter(None, (place_of(fault.node, fault.line), fault.message))),
        )
        for fault in faults
    ]
    first = violations[0]
    more = len(violations) - 1
    tail = f" (and {more} more)" if more else ""
    return Refusal(
        "INVALID_DEFINITION",
        f"{first.field}: {first.message}{tail}",
        metadata={"faults": str(len(violations)), "try": "windlass workflow validate FILE"},
        violations=violations,
    )


def invalid_field(field: str, reason: str, message: str) -> Refusal:
    return invalid_fields([Fault(field, reason, message)])


def invalid_fields(faults: Sequence[Fault]) -> Refusal:
    first = faults[0]
    return Refusal(
        "INVALID_REQUEST",
        f"{first.path}: {first.message}",
        violations=[Violation(fault.path, fault.reason, fault.message) for fault in faults],
    )


def input_mismatch(workflow: str, violations: Sequence[Violation]) -> Refusal:
    first = violations[0]
    return Refusal(
        "INPUT_MISMATCH",
        f"the input does not fit workflow {workflow!r}: {first.field}: {first.message}",
        metadata={"workflow": workflow, "try": f"windlass workflow get {workflow}"},
        violations=violations,
    )


def execution_not_found(execution_id: str) -> Refusal:
    message = "there is no such execution in this workspace"
    return _refusal("EXECUTION_NOT_FOUND", message, "windlass list", execution_id=execution_id)


def execution_not_started(execution_id: str) -> Refusal:
    message = "the execution waits in the queue and has no journal yet"
    return _refusal("EXECUTION_NOT_STARTED", message, f"windlass explain {execution_id}", execution_id=execution_id)


def execution_final(execution_id: str, state: str) -> Refusal:
    message = f"the execution has already ended: {state}"
    hint = f"windlass get {execution_id}"
    return _refusal("EXECUTION_FINAL", message, hint, execution_id=execution_id, state=state)


def execution_imported(execution_id: str) -> Refusal:
    message = "the execution was imported, so it can only be read"
    return _refusal("EXECUTION_IMPORTED", message, f"windlass get {execution_id}", execution_id=execution_id)


def command_refused(reason: str, message: str, execution_id: str) -> Refusal:
    """The coordinator's refusal of a command. Its reasons are those of the contract."""
    return _refusal(reason, message, f"windlass get {execution_id}", execution_id=execution_id)


def execution_not_failed(execution_id: str) -> Refusal:
    message = "the execution succeeded; name the node from which it is to be done again"
    return _refusal("EXECUTION_NOT_FAILED", message, f"windlass runs {execution_id}", execution_id=execution_id)


def node_not_found(execution_id: str, node: str) -> Refusal:
    message = f"the workflow has no node {node!r}"
    return _refusal("NODE_NOT_FOUND", message, f"windlass get {execution_id}", execution_id=execution_id, node=node)


def node_not_in_version(workflow: str, version: int, node: str) -> Refusal:
    message = f"version {version} of the workflow has no node {node!r}"
    return _refusal("NODE_NOT_FOUND", message, f"windlass workflow get {workflow}", workflow=workflow, node=node)


def dead_letter_not_found(dead_letter_id: str) -> Refusal:
    message = "there is no such dead letter in this workspace"
    return _refusal("DEAD_LETTER_NOT_FOUND", message, "windlass dead-letters list", dead_letter_id=dead_letter_id)


def already_resolved(dead_letter_id: str, resolution: str) -> Refusal:
    message = f"the dead letter was resolved before, as {resolution}"
    hint = f"windlass dead-letters get {dead_letter_id}"
    return _refusal("ALREADY_RESOLVED", message, hint, dead_letter_id=dead_letter_id, resolution=resolution)


def execution_given_up(execution_id: str) -> Refusal:
    message = "the execution was given up; requeue it as a dead letter once the cause is mended"
    hint = f"windlass dead-letters get {execution_id}"
    return _refusal("EXECUTION_FINAL", message, hint, execution_id=execution_id)


def approval_not_found(approval_id: str) -> Refusal:
    message = "there is no such approval in this workspace"
    return _refusal("APPROVAL_NOT_FOUND", message, "windlass approvals list", approval_id=approval_id)


def approval_resolved(approval_id: str, state: str) -> Refusal:
    hint = f"windlass approvals get {quote(approval_id)}"
    return _refusal("ALREADY_RESOLVED", f"the approval is {state}", hint, approval_id=approval_id, state=state)


def form_mismatch(approval_id: str, violations: Sequence[Violation]) -> Refusal:
    first = violations[0]
    return Refusal(
        "FORM_MISMATCH",
        f"the form does not fit the approval: {first.field}: {first.message}",
        metadata={"approval_id": approval_id, "try": f"windlass approvals get {quote(approval_id)}"},
        violations=violations,
    )


def token_invalid() -> Refusal:
    return Refusal("TOKEN_INVALID", "this is no completion token that a run has been given")


def run_ended(run_id: str, state: str) -> Refusal:
    message = f"the run is over ({state}), so its completion token is void"
    return _refusal("RUN_ENDED", message, f"windlass runs {quote(run_id.partition('.')[0])}", run_id=run_id)


def run_not_found(run_id: str) -> Refusal:
    if is_run_id(run_id):
        message, hint = "there is no such run in this workspace", f"windlass runs {run_id.partition('.')[0]}"
    else:
        message = "a run id is that of its execution, a dot and a number"
        hint = f"windlass runs {run_id} -o name" if is_execution_id(run_id) else "windlass runs -o name"
    return _refusal("RUN_NOT_FOUND", message, hint, run_id=run_id)


def circuit_not_found(target: str) -> Refusal:
    message = "this target has no circuit in this workspace: no call of it has failed lately"
    return _refusal("CIRCUIT_NOT_FOUND", message, "windlass circuits list", target=target)


def bulk_job_not_found(job_id: str) -> Refusal:
    return _refusal("BULK_JOB_NOT_FOUND", "there is no such job in this workspace", "windlass jobs list", job=job_id)


def bulk_job_ended(job_id: str, state: str) -> Refusal:
    hint = f"windlass jobs show {quote(job_id)}"
    return _refusal("BULK_JOB_ENDED", f"the job has already ended: {state}", hint, job=job_id, state=state)


def bulk_jobs_exceeded(workspace: str, jobs_max: int) -> Refusal:
    return Refusal(
        "BULK_JOBS_EXCEEDED",
        f"{jobs_max} jobs of this workspace run already",
        metadata={"workspace": workspace, "try": "windlass jobs list"},
        retry_after=QUEUE_RETRY_SECONDS,
        quota=[QuotaViolation(f"workspace:{workspace}", f"at most {jobs_max} jobs run at once")],
    )


def counts_exceeded(retry_after: float) -> Refusal:
    message = "other counts are under way, of this workspace or of others; repeat it in a moment"
    return Refusal("COUNTS_EXCEEDED", message, retry_after=retry_after)


def replays_exceeded() -> Refusal:
    message = "other journals of this workspace are being replayed or imported; try again in a moment"
    return Refusal("REPLAYS_EXCEEDED", message, retry_after=QUEUE_RETRY_SECONDS)


def bulk_request_id_reused(request_id: str, job_id: str) -> Refusal:
    metadata = {"request_id": request_id, "job": job_id, "try": f"windlass jobs show {quote(job_id)}"}
    return Refusal("REQUEST_ID_REUSED", "this request_id was used before with other content", metadata=metadata)


def request_id_reused(request_id: str, existing: str) -> Refusal:
    metadata = {"request_id": request_id, "try": "use a new request_id for other content"}
    if existing:
        metadata |= {"execution_id": existing, "try": f"windlass get {existing}"}
    return Refusal("REQUEST_ID_REUSED", "this request_id was used before with other content", metadata=metadata)


def queue_full(workspace: str, queued_max: int) -> Refusal:
    return Refusal(
        "QUEUE_FULL",
        f"{queued_max} executions are queued already",
        metadata={"workspace": workspace, "try": 'windlass list --filter "state = PENDING"'},
        retry_after=QUEUE_RETRY_SECONDS,
        quota=[QuotaViolation(f"workspace:{workspace}", f"queued_max is {queued_max}")],
    )


def workspace_not_found(workspace: str) -> Refusal:
    message = f"there is no workspace {workspace!r}"
    return _refusal("WORKSPACE_NOT_FOUND", message, "windlass workspace list", workspace=workspace)


def workspace_deleted(workspace: str) -> Refusal:
    """The answer to a coordinator, whose own credential is in order."""
    return Refusal("WORKSPACE_DELETED", f"the workspace {workspace!r} was closed")


def workspace_exists(workspace: str) -> Refusal:
    message = f"there is, or was, a workspace {workspace!r} with other settings; a name is never used again"
    return _refusal("WORKSPACE_EXISTS", message, f"windlass workspace get {workspace}", workspace=workspace)


def api_key_not_found(key_id: str) -> Refusal:
    message = "there is no such key in this workspace"
    return _refusal("API_KEY_NOT_FOUND", message, "windlass keys list", key_id=key_id)


def key_invalid() -> Refusal:
    return Refusal("KEY_INVALID", "this key is unknown or was revoked")


def key_expired() -> Refusal:
    return Refusal("KEY_EXPIRED", "this key has expired")


def _refusal(reason: str, message: str, hint: str, **metadata: str) -> Refusal:
    return Refusal(reason, message, metadata={**metadata, "try": hint})
