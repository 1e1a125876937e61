"""docs/errors.md knows every reason and every type of error that the services give, and how each call is repeated."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.support.api import CHANGING
from tests.support.reasons import named_in, refusal_reasons, run_error_types

ROOT = Path(__file__).resolve().parents[1]
# These folders make the errors of runs and executions.
MAKERS = ("services/runner", "services/coordinator", "client/windlass/sdk")


def given(folders: tuple[str, ...], found_in: Callable[[str], set[str]]) -> set[str]:
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {name for path in paths for name in found_in(path.read_text())}


def known() -> set[str]:
    return named_in((ROOT / "docs/errors.md").read_text())


def test_page_knows_every_reason_of_a_refusal() -> None:
    reasons = given(("services",), refusal_reasons)
    assert {"SERVICE_NOT_FOUND", "QUEUE_FULL", "INTERNAL", "API_KEY_NOT_FOUND"} <= reasons
    assert sorted(reasons - known()) == []


def test_page_knows_every_type_of_a_run_error() -> None:
    types = given(MAKERS, run_error_types)
    assert {"NODE_TIMEOUT", "HTTP_<>", "POISON", "REPORT_TOO_LARGE", "CIRCUIT_OPEN", "CANCELLED"} <= types
    assert sorted(types - known()) == []


def test_page_says_why_the_repeat_of_every_change_is_safe() -> None:
    table = (ROOT / "docs/errors.md").read_text().partition("## After a lost answer")[2]
    named = {name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall(r"\w+", row)}
    assert sorted(CHANGING - named) == []
