"""Clears cached values when a notification of the database says that a replica has changed them."""

from __future__ import annotations

from services.api.app.authenticator import Authenticator
from services.api.app.startables import Startables
from services.chassis.process.batcher import Level


class Changes:
    def __init__(
        self, authenticator: Authenticator, startables: Startables, limits_changed: Level, jobs_changed: Level
    ) -> None:
        self._authenticator = authenticator
        self._startables = startables
        self._limits_changed = limits_changed
        self._jobs_changed = jobs_changed

    def heard(self, channel: str, payload: str) -> None:
        """An empty payload means that anything may have changed."""
        kind, _, name = payload.partition(":")
        try:
            self._forget(kind, name)
        except ValueError:
            # A later version may send a payload of this form.
            self._forget("", "")

    def _forget(self, kind: str, name: str) -> None:
        match kind:
            case "key":
                self._authenticator.forget(bytes.fromhex(name))
            case "workflow":
                self._startables.forget(*name.split("/", 1))
            case "workspace":
                self._authenticator.forget_all()
                self._startables.forget(name)
                self._limits_changed.set()
            case "bulk_job":
                self._jobs_changed.set()
            case _:
                self._authenticator.forget_all()
                self._startables.forget_all()
                self._limits_changed.set()
                self._jobs_changed.set()
