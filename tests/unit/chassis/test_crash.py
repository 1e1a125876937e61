"""A test can make a process die at a named point."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.chassis.process.crash import VARIABLE, armed, crash_point, given, plan
from tests.support.crash_points import crash_points_in


def test_a_plan_names_points_and_passings() -> None:
    assert plan("a.b:2, c:1,d") == {"a.b": 2, "c": 1, "d": 1}
    assert plan("") == {}
    with pytest.raises(ValueError, match="never happens"):
        plan("a:0")


def test_points_that_are_not_planned_are_passed() -> None:
    crash_point("anything")
    armed({"other": 1})("this.one")


def test_the_process_dies_at_the_nth_passing_and_not_before() -> None:
    program = (
        "from services.chassis.process.crash import crash_point\n"
        "for n in range(5):\n"
        "    print(n, flush=True)\n"
        "    crash_point('loop.turn')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, VARIABLE: "loop.turn:3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]
    assert done.stderr.splitlines()[-1] == f"{VARIABLE} loop.turn"


def test_the_plan_can_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("a.b:2")
    assert given(f"@{tmp_path}/plan") == "a.b:2"
    assert given("c:1") == "c:1"


def test_the_names_are_read_from_the_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('crash_point("x.before")\nawait f(); crash_point(\n    "x.after"\n)\n')
    (tmp_path / "b.py").write_text("def crash_point(name): ...\n")
    assert crash_points_in(tmp_path) == {"x.before", "x.after"}
