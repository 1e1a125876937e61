"""What a holder tells of itself at every attach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HolderProfile:
    # For people: "coordinator-0". The identity is the instance id, which is fresh at every start.
    holder: str
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()
    idempotent_modules: Sequence[str] = ()
