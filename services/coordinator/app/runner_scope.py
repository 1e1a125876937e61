"""The needs of a run, and the scope of a runner: the runs that it may be granted. Each session has its scope as `data`.

A key that was made for a workspace is granted runs of that workspace only. A runner with a certificate belongs to the
stack and serves every workspace.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.lease.frames import Attach
from services.coordinator.core.controls import CONTROLS
from windlass.definition.config_schemas import CONFIG_SCHEMAS, RAW_MEMBERS

# The modules of a runner that names none: the built-in ones, except those that the coordinator carries out itself.
DEFAULT_MODULES: Final = frozenset(CONFIG_SCHEMAS).difference(CONTROLS)


class Requirement(NamedTuple):
    """A runner must have all this to be given the run."""

    workspace: str
    module: str
    labels: tuple[tuple[str, str], ...]
    # It has templates, which the runner has to render.
    is_templated: bool = False
    # The runner itself has to evaluate an expression after the work.
    has_until: bool = False


class RunnerScope:
    """The runs that a runner may be granted, in a form that is quick to compare."""

    __slots__ = (
        "_reserve",
        "idempotent_modules",
        "key_id",
        "labels",
        "modules",
        "places_max",
        "wants_rendered",
        "workspace",
    )

    def __init__(self, attach: Attach, identity: Identity, reserve: float) -> None:
        """`reserve` is the share of the runner's places that goes only to workspaces that hold none there."""
        # "": the runner attached without a key.
        self.key_id = identity.name if identity.kind is CallerKind.RUNNER else ""
        self.workspace = identity.workspace
        self.wants_rendered = attach.wants_rendered
        self.modules = frozenset(attach.modules) or DEFAULT_MODULES
        if self.wants_rendered:
            # They evaluate their config themselves, as templates are rendered.
            self.modules -= RAW_MEMBERS.keys()
        # The runner says that these are idempotent.
        self.idempotent_modules = frozenset(attach.idempotent_modules)
        self.labels = frozenset(attach.labels.items())
        # A runner of one workspace needs no reserve.
        self._reserve = 0.0 if self.workspace else reserve
        # A workspace that holds a place begins no run beyond this number. 0: no reserve.
        reserved = self.reserved(attach.capacity)
        self.places_max = attach.capacity - reserved if reserved else 0

    def serves(self, workspace: str) -> bool:
        return self.workspace in ("", workspace)

    def reserved(self, places: int) -> int:
        """How many of so many places are the reserve. A single place cannot be kept free."""
        return max(1, int(places * self._reserve)) if self._reserve and places > 1 else 0

    def fits(self, requirement: Requirement) -> bool:
        return (
            requirement.module in self.modules
            and self.serves(requirement.workspace)
            and not (requirement.is_templated and self.wants_rendered)
            and self.labels.issuperset(requirement.labels)
        )
