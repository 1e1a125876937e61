"""`windlass keys …` with an ADMIN key, `windlass workspace …` with the system key."""

from typing import Annotated, Any, Literal

import typer

from windlass.cli import messages, render
from windlass.cli.connection import Api, command

keys = typer.Typer(help="API keys of a workspace.", no_args_is_help=True, rich_markup_mode=None)
workspaces = typer.Typer(help="Workspaces; needs the system key.", no_args_is_help=True, rich_markup_mode=None)

WorkspaceArgument = Annotated[str, typer.Argument(metavar="WORKSPACE")]
WorkspaceOption = Annotated[
    str, typer.Option("--workspace", help="A workspace other than the key's own; needs the system key.")
]


Role = Literal["VIEWER", "WORKFLOW", "ADMIN", "RUNNER"]
Tier = Literal["FREE", "PRO", "ENTERPRISE"]
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
    typer.echo(f"key {answer.api_key.key_id} of workspace {answer.api_key.workspace}; shown once:", err=True)
    typer.echo(answer.key)


@command(keys, "create", shows=_show_key)
def create_key(
    api: Api,
    role: Role,
    title: Annotated[str, typer.Option(help="Says who has the key and what for.")] = "",
    workspace: WorkspaceOption = "",
) -> Any:
    """Make a key; it is shown this once."""
    request = messages.CreateApiKeyRequest(workspace=workspace, role=messages.Role.Value(role), title=title)
    return api.call(request, key=_key_for(workspace))


@command(keys, "list", shows=render.listing("api_keys", KEY_COLUMNS))
def list_keys(api: Api, workspace: WorkspaceOption = "") -> Any:
    """List the keys of a workspace, without their secrets."""
    request = messages.ListApiKeysRequest(workspace=workspace, page_size=1000)
    return api.whole(request, key=_key_for(workspace))


@command(keys, "revoke")
def revoke_key(api: Api, key_id: Annotated[str, typer.Argument(metavar="KEY_ID")]) -> None:
    """Refuse a key from now on."""
    api.call(messages.RevokeApiKeyRequest(key_id=key_id))
    typer.echo(f"{key_id} is refused from now on")


def _show_workspace(answer: Any) -> None:
    name = answer.workspace.workspace
    typer.echo(f"{name} is made; its first key: windlass keys create ADMIN --workspace {name}")


@command(workspaces, "create", shows=_show_workspace)
def create_workspace(
    api: Api,
    workspace: WorkspaceArgument,
    tier: Annotated[Tier, typer.Option()] = "FREE",
    executions_max: Annotated[int, typer.Option(help="Executions at once; 0 = the tier's number.", min=0)] = 0,
) -> Any:
    """Make a workspace."""
    limits = messages.Limits(executions_max=executions_max)
    request = messages.CreateWorkspaceRequest(workspace=workspace, tier=messages.Tier.Value(tier), limits=limits)
    return api.call(request, key="system")


@command(workspaces, "list", shows=render.listing("workspaces", WORKSPACE_COLUMNS))
def list_workspaces(api: Api) -> Any:
    """List all workspaces with their limits."""
    return api.whole(messages.ListWorkspacesRequest(page_size=1000), key="system")


@command(workspaces, "get")
def get_workspace(api: Api, workspace: WorkspaceArgument) -> None:
    """Show a workspace with its limits and etag, as JSON."""
    request = messages.GetWorkspaceRequest(workspace=workspace)
    render.print_json(api.call(request, key="system").workspace)


@command(workspaces, "update")
def update_workspace(
    api: Api,
    workspace: WorkspaceArgument,
    tier: Annotated[Tier | None, typer.Option()] = None,
    executions_max: Annotated[int | None, typer.Option(help="0 = the tier's number.", min=0)] = None,
    queued_max: Annotated[int | None, typer.Option(help="0 = the default.", min=0)] = None,
    etag: Annotated[str, typer.Option(help="Refuse unless it still has this etag.")] = "",
) -> None:
    """Change its tier or limits; a lower limit ends no running execution."""
    changed = messages.Workspace(workspace=workspace)
    request = messages.UpdateWorkspaceRequest(workspace=changed, etag=etag)
    if tier is not None:
        request.workspace.tier = messages.Tier.Value(tier)
        request.update_mask.paths.append("tier")
    for name, value in {"executions_max": executions_max, "queued_max": queued_max}.items():
        if value is not None:
            setattr(request.workspace.limits, name, value)
            request.update_mask.paths.append(f"limits.{name}")
    render.print_json(api.call(request, key="system").workspace)


@command(workspaces, "delete")
def delete_workspace(
    api: Api, workspace: WorkspaceArgument, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Close it for good: its keys are refused at once, queued executions become dead letters, and its name is never
    given again."""
    if not yes:
        typer.confirm(f"Close {workspace!r} for good?", abort=True)
    request = messages.DeleteWorkspaceRequest(workspace=workspace)
    api.call(request, key="system")
    typer.echo(f"{workspace} is closed")


def _key_for(workspace: str) -> str:
    return "system" if workspace else "admin"
