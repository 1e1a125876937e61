"""Named points at which a test can have this process die as by `kill -9`.

`WINDLASS_CRASH_AT="name:n,other:m"` kills at the n-th passing of a point; `@path` reads the same from a file, so that
each life of a process that is started again can end elsewhere. The points stand in production code on purpose: only
there do they prove what a crash between two statements leaves. Read once, at import; where the variable is unset a
passing costs one empty call. The last line on stderr names the point.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from services.chassis.process.naming import ENVIRONMENT_PREFIX

VARIABLE = f"{ENVIRONMENT_PREFIX}CRASH_AT"


def plan(text: str) -> dict[str, int]:
    """`name:n` pairs, comma separated; `name` alone means its first passing."""
    planned: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, nth = part.partition(":")
        planned[name] = int(nth or "1")
        if planned[name] < 1:
            raise ValueError(f"{VARIABLE}: {part!r} never happens; passings count from 1")
    return planned


def armed(planned: dict[str, int]) -> Callable[[str], None]:
    left = dict(planned)

    def pass_point(name: str) -> None:
        if name not in left:
            return
        left[name] -= 1
        if left[name] == 0:
            os.write(2, f"{VARIABLE} {name}\n".encode())
            # Not os._exit: SIGKILL also stops the threads of gRPC between two instructions.
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_point


def _unarmed(name: str) -> None:
    """Nothing is planned in this process."""


def given(text: str) -> str:
    """What the variable says, or what the file says that it names."""
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


_PLANNED = plan(given(os.environ.get(VARIABLE, "")))
crash_point: Callable[[str], None] = armed(_PLANNED) if _PLANNED else _unarmed

_CALL = re.compile(r"""\bcrash_point\(\s*["']([a-z0-9_.-]+)["']""")


def crash_points_in(directory: Path) -> set[str]:
    """Every point named in the sources below: what a test of all points iterates over."""
    found: set[str] = set()
    for source in directory.rglob("*.py"):
        found.update(_CALL.findall(source.read_text(encoding="utf-8")))
    return found
