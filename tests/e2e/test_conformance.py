"""`windlass conformance` finds nothing to say of our runner, and says how it is used."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import windlass
from tests.support.conformance import account, examined

RUNNER = [sys.executable, "-m", "windlass.cli", "serve", "runner"]
RUNNER += ["--grpc-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]

CALLING = ["--calling", 'http.request@1={"url": "http://127.0.0.1:9/"}']
# A field of grants that a runner does not read, what it believes to be there, the story and the rule that show it.
UNREAD = [
    ("has_templates", "1", "grant_has_no_templates", "TEMPLATES_NONE"),
    ("has_templates", "0", "templates_are_rendered", "TEMPLATES_SEE"),
    ("state", "", "templates_are_rendered", "TEMPLATES_SEE"),
    ("workflow_version", "0", "templates_are_rendered", "TEMPLATES_SEE"),
    ("without_output", "", "templates_are_rendered", "WITHOUT_OUTPUT"),
    ("execution_error", "", "templates_are_rendered", "EXECUTION_ERROR"),
    ("input_overrides", "", "templates_are_rendered", "INPUT_OVERRIDES"),
    ("render_only", "0", "work_is_only_rendered", "RENDER_ONLY"),
    ("render_all", "0", "work_is_only_rendered", "RENDER_ONLY"),
    ("places_max", "0", "places_are_kept_for_others", "GRANT_PLACES"),
    ("open_targets", "", "target_is_not_to_be_called", "TARGET_OPEN"),
]


@pytest.fixture(autouse=True)
def open_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target that the runner is to call is an address of this machine."""
    monkeypatch.setenv("WINDLASS_RUNNER_ALLOW_NET", "127.0.0.1")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_our_runner_keeps_every_rule() -> None:
    done = examined(shlex.join(RUNNER), *CALLING)
    assert set(account(done).values()) == {"kept"}, done.stdout
    assert done.returncode == 0


def test_some_rules_are_shown_by_some_stories() -> None:
    done = examined(shlex.join(RUNNER), "--story", "execution_ends", "--story", "report_is_not_understood")
    verdicts = account(done)
    assert verdicts["REVOKE_STOPPED"] == verdicts["REPORT_INVALID"] == verdicts["ATTACH_FIRST"] == "kept", done.stdout
    assert "CLAIM_DENIED" not in verdicts
    assert done.returncode == 0


@pytest.mark.parametrize(("module", "verdict"), [("test.leaves@1", "kept"), ("noop@1", "BROKEN")])
def test_a_runner_says_that_work_was_left_to_somebody_else(
    monkeypatch: pytest.MonkeyPatch, module: str, verdict: str
) -> None:
    monkeypatch.setenv("WINDLASS_MODULES", str(Path(__file__).with_name("node_modules.py")))
    done = examined(shlex.join(RUNNER), "--deferring", module, "--story", "work_is_deferred")
    assert account(done)["REPORT_DEFERRED"] == verdict, done.stdout


def test_work_whose_target_must_not_be_called_is_handed_back() -> None:
    done = examined(shlex.join(RUNNER), *CALLING, "--story", "target_is_not_to_be_called")
    assert account(done)["TARGET_OPEN"] == "kept", done.stdout


@pytest.mark.long
@pytest.mark.parametrize(("field", "value", "story", "rule"), UNREAD, ids=[f"{row[0]}-{row[1]}" for row in UNREAD])
def test_kit_names_the_rule_of_a_field_that_is_not_read(field: str, value: str, story: str, rule: str) -> None:
    runner = shlex.join([sys.executable, "-m", "tests.support.deaf_runner", field, value])
    done = examined(runner, *CALLING, "--story", story)
    assert account(done)[rule] == "BROKEN", done.stdout


def test_runner_that_never_attaches_is_noticed() -> None:
    done = examined("sleep 0", "--story", "execution_ends")
    assert "does not attach to every coordinator" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--runner"),
        (["--listen", "127.0.0.1:0"], "give two addresses"),
        (["--runner", "x", "--story", "no_such_story"], "there is no story no_such_story"),
        (["--runner", "x", "--quick", "noop@1={"], "the config of noop@1 is not JSON"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], said: str) -> None:
    done: subprocess.CompletedProcess[str] = windlass("conformance", *arguments, COLUMNS="200")
    assert done.returncode == 2
    assert said in done.stderr
