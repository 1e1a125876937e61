"""Finds the crash points in sources, so that a test can run through all of them."""

import re
from pathlib import Path

_CALL = re.compile(r"""\bcrash_point\(\s*["']([a-z0-9_.-]+)["']""")


def crash_points_in(directory: Path) -> set[str]:
    found: set[str] = set()
    for source in directory.rglob("*.py"):
        found.update(_CALL.findall(source.read_text(encoding="utf-8")))
    return found
