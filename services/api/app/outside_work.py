"""Work that somebody else finishes: whoever has the completion token of a run says how it ended.

The token is the whole permission, so nothing is told and nothing is brought to an execution before it has proved
genuine. It names the run; the secret of the run's workspace proves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from services.api.app import refusals
from services.api.app.commands import Commands, NewCommand
from services.api.app.identifiers import is_run_id
from services.api.app.ports import EffectSecrets, RunView, RunViews
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.identity.named_tokens import NamedTokens, name_in


class OutsideWork:
    def __init__(self, runs: RunViews, secrets: EffectSecrets, commands: Commands, purpose: str) -> None:
        """`purpose` is that of the tokens."""
        self._runs = runs
        self._secrets = secrets
        self._commands = commands
        self._purpose = purpose

    async def run_of(self, token: str) -> RunView:
        """The run that the token names."""
        run_id = name_in(token)
        run = await self._runs.run_view(run_id) if is_run_id(run_id) else None
        secret = None if run is None else await self._secrets.effect_secret(run.workspace)
        if run is None or secret is None or not NamedTokens(secret, self._purpose).is_genuine(token):
            raise refusals.token_invalid()
        return run

    async def end(self, run: RunView, kind: str, message: Any, ended_so: Callable[[RunView], bool]) -> None:
        """Bring the outcome to the execution. `ended_so` tells whether a run has ended with just this outcome: then it
        is a repeat."""
        content = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
        command = NewCommand(f"{kind}.{run.number}", run.execution_id, message, content)
        if not run.is_over:
            try:
                await self._commands.give(run.workspace, command)
            except Refusal as refusal:
                if refusal.reason not in ("EXECUTION_FINAL", "RUN_ENDED"):
                    raise
            run = await self._runs.run_view(run.id) or run
        if ended_so(run):
            return
        if run.is_over:
            raise refusals.run_ended(run.id, run.state)
        raise DependencyUnavailable("the execution", "the outcome is on its way; repeat the call to learn of it")

    async def heartbeat(self, run: RunView, message: Any) -> None:
        if run.is_over:
            raise refusals.run_ended(run.id, run.state)
        if not await self._commands.bring(run.workspace, NewCommand("heartbeat", run.execution_id, message)):
            raise refusals.run_ended(run.id, run.state)
