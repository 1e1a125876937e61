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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_our_runner_keeps_every_rule() -> None:
    done = examined(shlex.join(RUNNER))
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
