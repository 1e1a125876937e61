"""The messages of the public API, for all commands.

They are imported at first use, because `windlass --help` is promised under 250 ms.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.api.v1.approvals_pb2 import *  # noqa: F403
    from windlass.api.v1.circuits_pb2 import *  # noqa: F403
    from windlass.api.v1.dead_letters_pb2 import *  # noqa: F403
    from windlass.api.v1.executions_pb2 import *  # noqa: F403
    from windlass.api.v1.exports_pb2 import *  # noqa: F403
    from windlass.api.v1.resources_pb2 import *  # noqa: F403
    from windlass.api.v1.runs_pb2 import *  # noqa: F403
    from windlass.api.v1.workflows_pb2 import *  # noqa: F403
    from windlass.api.v1.workspaces_pb2 import *  # noqa: F403


def __getattr__(name: str) -> Any:
    files = (
        "approvals",
        "circuits",
        "dead_letters",
        "executions",
        "exports",
        "resources",
        "runs",
        "workflows",
        "workspaces",
    )
    for each in files:
        module = import_module(f"windlass.api.v1.{each}_pb2")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(name)
