"""WorkspaceService and ApiKeyService."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from services.api.app import refusals
from services.api.app.authenticator import Authenticator
from services.api.app.key_material import KeyMint, key_hash
from services.api.app.ports import ApiKeys, KeyIdTaken, NewKey, WorkspaceRecord, Workspaces
from services.api.app.startables import Startables
from services.api.core.tiers import Tier
from services.api.rpc import translate
from services.api.rpc.pages import Page
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import CallerKind, Identity, caller
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from windlass.api.v1 import workspaces_pb2 as pb
from windlass.api.v1 import workspaces_pb2_grpc

_MASKS: Final = {
    "tier": ("tier",),
    "limits": ("executions_max", "queued_max"),
    "limits.executions_max": ("executions_max",),
    "limits.queued_max": ("queued_max",),
}


class WorkspaceServicer(workspaces_pb2_grpc.WorkspaceServiceServicer):
    def __init__(
        self, workspaces: Workspaces, startables: Startables, authenticator: Authenticator, changed: Level
    ) -> None:
        self._workspaces = workspaces
        self._startables = startables
        self._authenticator = authenticator
        # Wakes the loop that tells the dispatchers.
        self._changed = changed

    async def CreateWorkspace(self, request: pb.CreateWorkspaceRequest, context: RpcCall) -> pb.CreateWorkspaceResponse:
        values = _values(request)
        values["tier"] = values["tier"] or int(Tier.FREE)
        record = await self._workspaces.add(caller(), request.workspace, values)
        if record is None:
            # A repeat of a request whose answer was lost asks for exactly the present state.
            record = await self._workspaces.get(request.workspace)
            if record is None or record.close_time is not None or not _has(record, values):
                raise refusals.workspace_exists(request.workspace)
        self._tell(request.workspace)
        return pb.CreateWorkspaceResponse(workspace=translate.workspace(record))

    async def GetWorkspace(self, request: pb.GetWorkspaceRequest, context: RpcCall) -> pb.GetWorkspaceResponse:
        record = await self._open(request.workspace)
        return pb.GetWorkspaceResponse(workspace=translate.workspace(record))

    async def ListWorkspaces(self, request: pb.ListWorkspacesRequest, context: RpcCall) -> pb.ListWorkspacesResponse:
        page = Page(request, "workspaces")
        found = await self._workspaces.page(page.after, page.size + 1)
        shown, token = page.cut(found, lambda row: row.workspace, translate.workspace)
        return pb.ListWorkspacesResponse(workspaces=shown, next_page_token=token)

    async def UpdateWorkspace(self, request: pb.UpdateWorkspaceRequest, context: RpcCall) -> pb.UpdateWorkspaceResponse:
        name = request.workspace.workspace
        values = _masked(request)
        await self._open(name)
        revision = _revision(request.etag)
        record = None
        if revision is not None:
            record = await self._workspaces.change(caller(), name, revision, values)
        if record is None:
            record = await self._open(name)
            if not _is_done(record, revision, values):
                raise refusals.etag_mismatch(name, f"windlass workspace get {name}")
        self._tell(name)
        return pb.UpdateWorkspaceResponse(workspace=translate.workspace(record))

    async def DeleteWorkspace(self, request: pb.DeleteWorkspaceRequest, context: RpcCall) -> pb.DeleteWorkspaceResponse:
        if not await self._workspaces.close(caller(), request.workspace):
            if await self._workspaces.get(request.workspace) is None:
                raise refusals.workspace_not_found(request.workspace)
        self._tell(request.workspace)
        return pb.DeleteWorkspaceResponse()

    async def _open(self, workspace: str) -> WorkspaceRecord:
        record = await self._workspaces.get(workspace)
        if record is None or record.close_time is not None:
            raise refusals.workspace_not_found(workspace)
        return record

    def _tell(self, workspace: str) -> None:
        self._startables.forget(workspace)
        self._authenticator.forget_all()
        self._changed.set()
        crash_point("api.workspace.before_answer")


class ApiKeyServicer(workspaces_pb2_grpc.ApiKeyServiceServicer):
    def __init__(
        self, keys: ApiKeys, workspaces: Workspaces, authenticator: Authenticator, mint: KeyMint, clock: Clock
    ) -> None:
        self._keys = keys
        self._workspaces = workspaces
        self._authenticator = authenticator
        self._mint = mint
        self._clock = clock

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: RpcCall) -> pb.CreateApiKeyResponse:
        workspace = _workspace_meant(caller(), request.workspace)
        expire_time = self._expire_time(request)
        role = pb.Role.Name(request.role)
        content = (request.title, request.expire_time.ToJsonString() if expire_time else "")
        key_id, key = self._mint.mint(role.lower(), workspace, request.request_id, *content)
        new = NewKey(key_id, key_hash(key), role, workspace, request.title, expire_time)
        try:
            record = await self._keys.add(caller(), new)
        except KeyIdTaken:
            raise refusals.request_id_reused(request.request_id, "") from None
        if record is None:
            raise refusals.workspace_not_found(workspace)
        crash_point("api.key.before_answer")
        return pb.CreateApiKeyResponse(api_key=translate.api_key(record), key=key)

    async def ListApiKeys(self, request: pb.ListApiKeysRequest, context: RpcCall) -> pb.ListApiKeysResponse:
        workspace = _workspace_meant(caller(), request.workspace)
        page = Page(request, "keys", workspace)
        found = await self._keys.page(workspace, page.after, page.size + 1)
        if not found and await self._workspaces.get(workspace) is None:
            raise refusals.workspace_not_found(workspace)
        shown, token = page.cut(found, lambda row: row.key_id, translate.api_key)
        return pb.ListApiKeysResponse(api_keys=shown, next_page_token=token)

    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: RpcCall) -> pb.RevokeApiKeyResponse:
        record = await self._keys.revoke(caller(), request.key_id)
        if record is None:
            raise refusals.api_key_not_found(request.key_id)
        self._authenticator.forget_all()
        crash_point("api.key.before_answer")
        return pb.RevokeApiKeyResponse(api_key=translate.api_key(record))

    def _expire_time(self, request: pb.CreateApiKeyRequest) -> datetime | None:
        if not request.HasField("expire_time"):
            return None
        try:
            time = request.expire_time.ToDatetime(UTC)
        except (ValueError, OverflowError):
            raise refusals.invalid_field("expire_time", "OUT_OF_RANGE", "must be in the years 1 to 9999") from None
        if time <= self._clock.now():
            raise refusals.invalid_field("expire_time", "OUT_OF_RANGE", "must be in the future")
        return time


def _workspace_meant(identity: Identity, asked: str) -> str:
    """A member's own workspace; another one is not found. The system key has to name one."""
    if identity.kind is CallerKind.SYSTEM:
        if not asked:
            raise refusals.invalid_field("workspace", "REQUIRED", "the system key must name a workspace")
        return asked
    if asked and asked != identity.workspace:
        raise refusals.workspace_not_found(asked)
    return identity.workspace


def _masked(request: pb.UpdateWorkspaceRequest) -> dict[str, int]:
    """The columns that the mask names, with their new values."""
    if not request.update_mask.paths:
        raise refusals.invalid_field("update_mask", "REQUIRED", f"must name fields out of {', '.join(_MASKS)}")
    known, values = _values(request.workspace), dict[str, int]()
    for path in request.update_mask.paths:
        if path not in _MASKS:
            raise refusals.invalid_field("update_mask", "UNKNOWN_FIELD", f"must be one of {', '.join(_MASKS)}")
        values.update((column, known[column]) for column in _MASKS[path])
    if "tier" in values and values["tier"] not in list(Tier):
        raise refusals.invalid_field("workspace.tier", "UNKNOWN_VALUE", "must be FREE, PRO or ENTERPRISE")
    return values


def _is_done(record: WorkspaceRecord, revision: int | None, values: Mapping[str, int]) -> bool:
    """The newest change is this one, so the call repeats a request whose answer was lost."""
    return revision == record.revision - 1 and _has(record, values)


def _has(record: WorkspaceRecord, values: Mapping[str, int]) -> bool:
    return all(getattr(record, key) == values[key] for key in values)


def _values(given: pb.CreateWorkspaceRequest | pb.Workspace) -> dict[str, int]:
    limits = given.limits
    return {"tier": int(given.tier), "executions_max": limits.executions_max, "queued_max": limits.queued_max}


def _revision(etag: str) -> int | None:
    """The revision of an etag. 0: any revision. None: no etag of ours."""
    if not etag:
        return 0
    return int(etag) if etag.isascii() and etag.isdigit() and 0 < len(etag) < 18 and int(etag) else None
