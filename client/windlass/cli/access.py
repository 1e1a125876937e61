"""`windlass keys …` with an ADMIN key, `windlass workspace …` with the system key."""

import time
import uuid
from typing import Annotated, Any, Literal

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import micros_of
from windlass.cli.connection import Api, command
from windlass.cli.forms import OutputForm, show
from windlass.cli.output import say

keys = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None)
workspaces = typer.Typer(
    help="Create, change and close workspaces, with the system key.", no_args_is_help=True, rich_markup_mode=None
)

WorkspaceArgument = Annotated[str, typer.Argument(metavar="WORKSPACE")]
WorkspaceOption = Annotated[
    str, typer.Option("--workspace", help="Another workspace than the key's own. This needs the system key.")
]


Role = Literal["VIEWER", "WORKFLOW", "ADMIN", "RUNNER"]
TierName = Literal["FREE", "PRO", "ENTERPRISE"]
TIER = typer.Option(help="It says how many executions may run at once, unless a limit is set.")
KEY_COLUMNS = {
    "key": "key_id",
    "role": "role",
    "title": "title",
    "made": "create_time",
    "expires": "expire_time",
    "revoked": "revoke_time",
}
WORKSPACE_COLUMNS = {
    "workspace": "workspace",
    "tier": "tier",
    "at once": "limits.executions_max",
    "queued": "limits.queued_max",
    "made": "create_time",
}


def _show_key(answer: Any) -> None:
    key = answer.api_key
    expiry = f", which expires at {render.date(key.expire_time)}" if key.HasField("expire_time") else ""
    say(f"key {key.key_id} of workspace {key.workspace}{expiry}; shown once:", err=True)
    say(answer.key)


@command(keys, "create", shows=_show_key)
def create_key(
    api: Api,
    role: Annotated[Role, typer.Argument(metavar="ROLE", help="docs/security.md says what it may do.")],
    title: Annotated[str, typer.Option(help="Says who has the key and what for.")] = "",
    expires_in: Annotated[
        str, typer.Option(metavar="DURATION", help="The key is refused after this time, like 12h or 30d; at most 365d.")
    ] = "",
    workspace: WorkspaceOption = "",
) -> Any:
    """Create a key, and show it once.

    \b
    Examples:
      windlass keys create VIEWER --title dashboard --expires-in 30d > dashboard.key
    """
    request = messages.CreateApiKeyRequest(
        workspace=workspace, role=messages.Role.Value(role), title=title, request_id=str(uuid.uuid4())
    )
    if expires_in:
        request.expire_time.FromMicroseconds(time.time_ns() // 1_000 + micros_of(expires_in, "--expires-in"))
    return api.call(request, key=_key_for(workspace))


@command(keys, "list", shows=render.listing("api_keys", KEY_COLUMNS))
def list_keys(api: Api, workspace: WorkspaceOption = "") -> Any:
    """List the keys of a workspace, without their secrets."""
    request = messages.ListApiKeysRequest(workspace=workspace, page_size=1000)
    return api.whole(request, key=_key_for(workspace))


@command(keys, "revoke", shows=lambda key: say(f"{key.key_id} is refused from now on"))
def revoke_key(api: Api, key_id: Annotated[str, typer.Argument(metavar="KEY_ID")]) -> Any:
    """Revoke a key: it is refused from now on."""
    return api.call(messages.RevokeApiKeyRequest(key_id=key_id)).api_key


@command(workspaces, "create")
def create_workspace(
    api: Api,
    workspace: WorkspaceArgument,
    tier: Annotated[TierName, TIER] = "FREE",
    executions_max: Annotated[
        int, typer.Option(help="The most executions at once; 0 means the tier's number.", min=0)
    ] = 0,
    queued_max: Annotated[int, typer.Option(help="The most queued executions; 0 means the default.", min=0)] = 0,
    output_form: OutputForm = "table",
) -> None:
    """Create a workspace.

    \b
    Examples:
      windlass workspace create team-a --tier PRO
      windlass workspace create team-a --executions-max 50 --queued-max 10000
    """
    limits = messages.Limits(executions_max=executions_max, queued_max=queued_max)
    request = messages.CreateWorkspaceRequest(workspace=workspace, tier=messages.Tier.Value(tier), limits=limits)
    first_key = api.typed(f"windlass keys create ADMIN --workspace {workspace}")
    said = f"{workspace} is created; create its first key with: {first_key}"
    show(api.call(request, key="system"), output_form, lambda _: say(said))


@command(workspaces, "list", shows=render.listing("workspaces", WORKSPACE_COLUMNS))
def list_workspaces(api: Api) -> Any:
    """List all workspaces with their limits."""
    return api.whole(messages.ListWorkspacesRequest(page_size=1000), key="system")


def _show_workspace(workspace: Any) -> None:
    facts = {
        "workspace": workspace.workspace,
        "tier": render.cell(workspace, "tier"),
        "at once": str(workspace.limits.executions_max),
        "queued": str(workspace.limits.queued_max),
        "etag": workspace.etag,
        "made": render.date(workspace.create_time),
        "changed": render.date(workspace.update_time),
    }
    render.facts(facts, width=9)


@command(workspaces, "get", shows=_show_workspace)
def get_workspace(api: Api, workspace: WorkspaceArgument) -> Any:
    """Show a workspace with its limits and etag."""
    request = messages.GetWorkspaceRequest(workspace=workspace)
    return api.call(request, key="system").workspace


@command(workspaces, "update", shows=_show_workspace)
def update_workspace(
    api: Api,
    workspace: WorkspaceArgument,
    tier: Annotated[TierName | None, TIER] = None,
    executions_max: Annotated[
        int | None, typer.Option(help="The most executions at once; 0 means the tier's number.", min=0)
    ] = None,
    queued_max: Annotated[
        int | None, typer.Option(help="The most queued executions; 0 means the default.", min=0)
    ] = None,
    etag: Annotated[str, typer.Option(help="Refuse if the workspace has changed since this etag was read.")] = "",
) -> Any:
    """Change the tier or the limits of a workspace. A lower limit ends no running execution.

    \b
    Examples:
      windlass workspace update team-a --executions-max 50
    """
    changed = messages.Workspace(workspace=workspace)
    request = messages.UpdateWorkspaceRequest(workspace=changed, etag=etag)
    if tier is not None:
        request.workspace.tier = messages.Tier.Value(tier)
        request.update_mask.paths.append("tier")
    for name, value in {"executions_max": executions_max, "queued_max": queued_max}.items():
        if value is not None:
            setattr(request.workspace.limits, name, value)
            request.update_mask.paths.append(f"limits.{name}")
    if not request.update_mask.paths:
        raise typer.BadParameter("say what to change: --tier, --executions-max or --queued-max")
    return api.call(request, key="system").workspace


@command(workspaces, "delete")
def delete_workspace(
    api: Api, workspace: WorkspaceArgument, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Close a workspace for good. Its keys are refused at once, queued executions become dead letters, and its name is
    never given again."""
    if not yes:
        typer.confirm(f"Close {workspace!r} for good?", abort=True)
    request = messages.DeleteWorkspaceRequest(workspace=workspace)
    api.call(request, key="system")
    say(f"{workspace} is closed")


def _key_for(workspace: str) -> str:
    return "system" if workspace else "admin"
