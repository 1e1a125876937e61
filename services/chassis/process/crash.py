"""Named points at which a test can kill this process, as `kill -9` does.

`WINDLASS_CRASH_AT="name:n,other:m"` kills the process when it passes a point for the n-th time. `@path` reads the same
from a file, so that a process that is started again can die elsewhere. The points stand in production code, because
only there do they prove what a crash between two statements leaves. The variable is read once, at import. When it is
unset, a point costs one look into an empty dict. The last line on stderr names the point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from services.chassis.process.naming import ENVIRONMENT_PREFIX

VARIABLE = f"{ENVIRONMENT_PREFIX}CRASH_AT"


def plan(text: str) -> dict[str, int]:
    """Read `name:n` pairs, separated by commas. `name` alone means the first passing."""
    planned: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, nth = part.partition(":")
        planned[name] = int(nth or "1")
        if planned[name] < 1:
            raise ValueError(f"{VARIABLE}: {part!r} never happens, because passings are counted from 1")
    return planned


def armed(planned: dict[str, int]) -> Callable[[str], None]:
    left = dict(planned)

    def pass_point(name: str) -> None:
        if name not in left:
            return
        left[name] -= 1
        if left[name] == 0:
            os.write(2, f"{VARIABLE} {name}\n".encode())
            # SIGKILL and not os._exit, because it also stops the threads of gRPC between two instructions.
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_point


def given(text: str) -> str:
    """The plan: the text itself, or the content of the file that `@path` names."""
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


crash_point: Callable[[str], None] = armed(plan(given(os.environ.get(VARIABLE, ""))))
