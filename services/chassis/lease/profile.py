"""The description that a holder gives of itself at every attach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HolderProfile:
    # A name for people, like "coordinator-0". The identity is the instance id, which is fresh at every start.
    holder: str
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()
    idempotent_modules: Sequence[str] = ()
