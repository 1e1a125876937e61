"""docs/errors.md knows every reason and every type of error that the services give."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.reasons import named_in, refusal_reasons, run_error_types

ROOT = Path(__file__).resolve().parents[1]
# Who makes the errors of runs and executions.
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


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ('raise Refusal("QUEUE_FULL", "later")', {"QUEUE_FULL"}),
        ('NO = "NO_KEY"\nraise errors.Refusal(NO, "")', {"NO_KEY"}),
        ('x: Final = "A_B" if y else "C_D"\nRefusal(x)', {"A_B", "C_D"}),
        ('Refusal(reason, "x")\nsay("NOT_ONE")', set()),
    ],
)
def test_reason_is_found_however_it_is_written(text: str, reasons: set[str]) -> None:
    assert refusal_reasons(text) == reasons


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ('raise PermanentError("No", type="NO_BRANCH")', {"NO_BRANCH"}),
        ('Error(ErrorClass.PERMANENT, "POISON", "dead")', {"POISON"}),
        ('kind = f"HTTP_{status}"\nraise TransientError(message, type=kind)', {"HTTP_<>"}),
        ('fitting.failed.type = "REPORT_TOO_LARGE"', {"REPORT_TOO_LARGE"}),
        ('class Late(ModuleError):\n    class_name = "TIMEOUT"', {"TIMEOUT"}),
        ('raise PermanentError(f"{x} is not", type=told)', set()),
    ],
)
def test_type_is_found_however_it_is_written(text: str, types: set[str]) -> None:
    assert run_error_types(text) == types


def test_page_names_a_thing_with_a_hole_in_any_words() -> None:
    assert named_in("| `HTTP_<status>`, `A_B` | other |") == {"HTTP_<>", "A_B"}
