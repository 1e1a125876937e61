"""Output for people: durations, states, and the timeline of an execution's runs."""

import json
import sys
import time
from collections.abc import Iterator

import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from windlass.api.v1.executions_pb2 import ListExecutionsResponse
from windlass.api.v1.resources_pb2 import Approval, Execution, Run
from windlass.cli.approvals import show_approval
from windlass.cli.output import say, say_file, say_pieces
from windlass.cli.render import coloured, compact, date, grid, plain, print_json, run_count, span, timeline
from windlass.cli.runs import show_runs


def run_from(node: str, began_ms: int, ended_ms: int, *, state: str = "SUCCESS", attempt: int = 1) -> Run:
    made = Run(id=f"e.{attempt}", node=node, module="noop@1", attempt=attempt, state=Run.State.Value(state))
    made.start_time.FromMilliseconds(1_800_000_000_000 + began_ms)
    made.end_time.FromMilliseconds(1_800_000_000_000 + ended_ms)
    return made


def test_bars_lie_on_one_scale(capsys: pytest.CaptureFixture[str]) -> None:
    timeline([run_from("first", 0, 500), run_from("second", 500, 1000)])
    first, second = capsys.readouterr().out.splitlines()
    assert first.count("━") == second.count("━") == 20
    assert first.index("━") + 20 == second.index("━")


@pytest.fixture(params=["Pacific/Kiritimati", "UTC", "Pacific/Niue"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as local:
        local.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_date_is_shown_wherever_one_is(zone: str) -> None:
    """A key that should last for ever may have such an end."""
    end = Timestamp()
    end.FromJsonString("9999-12-31T23:59:59Z")
    shown = "9999-12-31 12:59:59" if zone == "Pacific/Niue" else "9999-12-31 23:59:59"
    assert date(end) == shown
    end.FromJsonString("2026-01-01T12:00:00Z")
    ours = {"Pacific/Kiritimati": "2026-01-02 02:00:00", "UTC": "2026-01-01 12:00:00"}
    assert date(end) == ours.get(zone, "2026-01-01 01:00:00")


def test_instant_run_is_still_seen(capsys: pytest.CaptureFixture[str]) -> None:
    timeline([run_from("instant", 0, 0), run_from("long", 0, 1000), run_from("last", 1000, 1000)])
    assert [line.count("━") for line in capsys.readouterr().out.splitlines()] == [1, 40, 1]


def test_failed_attempt_and_its_retry_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    timeline([run_from("a", 0, 10, state="FAILED"), run_from("a", 20, 30, attempt=2)])
    failed, retried = capsys.readouterr().out.splitlines()
    assert "FAILED attempt 1" in failed
    assert "SUCCESS attempt 2" in retried


def test_run_that_has_not_begun_has_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    timeline([Run(node="waiting")])
    assert capsys.readouterr().out == ""


def test_table_escapes_what_users_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_from("a", 0, 10, state="FAILED")
    run.error.type, run.error.message = "T", "[red]not markup[/red]"
    show_runs([run])
    assert "T: [red]not markup[/red]" in capsys.readouterr().out


@pytest.fixture(params=["terminal", "pipe"])
def narrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if request.param == "terminal":
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.usefixtures("narrow")
def test_row_is_one_line_with_whole_cells_however_narrow_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ("01a1f40c-0b94-7696-8f55-c6ffdb747459", "order-intake@12", "2026-11-19 13:43:20", "a long\nerror " * 9, "")
    grid(("execution", "workflow", "started", "error", "end"), [cells, ("x", "注文@1", "", "short", "")])
    titles, rule, first, second = capsys.readouterr().out.splitlines()
    assert first.split("  ") == [*cells[:3], " ".join(cells[3].split())]
    assert rule == "─" * 80
    assert second.index("short") == first.index("a long") - 2  # each of the two characters is two columns wide
    assert titles.index("error") == first.index("a long")
    assert [line for line in (first, second) if line.endswith(" ")] == []


def test_skipped_node_has_no_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    show_runs([Run(id="e.6", node="other", module="noop@1", state=Run.State.SKIPPED)])
    assert capsys.readouterr().out.splitlines()[2].split() == ["6", "other", "noop@1", "SKIPPED"]


def test_run_that_renders_the_output_is_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    show_runs([run_from("a", 0, 10), run_from("$output", 10, 20)])
    shown = capsys.readouterr().out
    assert "$output" not in shown
    assert shown.count("(output)") == 2


def test_run_that_undoes_a_node_is_named_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    timeline([run_from("charge", 0, 500), run_from("charge$undo", 500, 1000)])
    node, undo = capsys.readouterr().out.splitlines()
    assert "charge (undo)" in undo
    assert "undo" not in node


def test_numbers_are_shown_as_they_were_written(capsys: pytest.CaptureFixture[str]) -> None:
    struct = Struct()
    struct.update({"whole": 4, "part": 4.5, "large": 1e300, "inner": [{"least": -(2**53)}]})
    print_json(struct)
    # A Struct keeps no order.
    shown = {line.strip().rstrip(",") for line in capsys.readouterr().out.splitlines()}
    assert {'"whole": 4', '"part": 4.5', '"large": 1e+300', '"least": -9007199254740992'} <= shown


def test_spans_have_a_readable_unit() -> None:
    assert [span(0.0123), span(1.5), span(75)] == ["12 ms", "1.50 s", "75.00 s"]
    long = (120, 725.6, 7_199, 7_200, 172_799, 172_800, 1_000_000)
    assert list(map(span, long)) == [
        "2 min 0 s", "12 min 6 s", "119 min 59 s", "2 h 0 min", "47 h 59 min", "2 d 0 h", "11 d 13 h",
    ]  # fmt: skip


def test_runs_are_counted_in_words() -> None:
    assert [run_count(11, retries) for retries in (0, 1, 4)] == [
        "11",
        "11, of which 1 is a retry",
        "11, of which 4 are retries",
    ]


def test_json_on_one_line_is_the_same_every_time() -> None:
    struct = Struct()
    struct.update({"b": 1, "a": {"d": 2, "c": 3}})
    assert compact(struct) == '{"a": {"c": 3, "d": 2}, "b": 1}'


def test_members_of_others_are_sorted_and_our_fields_stand_as_they_are_declared() -> None:
    execution = Execution(id="e1", workflow="w", labels={"z": "1", "b": "2", "a": "3"})
    execution.input.update({"b": [{"d": 1, "c": 2}], "a": {"f": 3, "e": 4}})
    shown = plain(ListExecutionsResponse(executions=[execution]))["executions"][0]
    assert list(shown) == ["id", "workflow", "input", "labels"]
    assert json.dumps(shown["input"]) == '{"a": {"e": 4, "f": 3}, "b": [{"c": 2, "d": 1}]}'
    assert list(shown["labels"]) == ["a", "b", "z"]


@pytest.mark.parametrize("pieces", [[b'{"a":', b" 1}"], [b"null\n"], []])
def test_output_in_pieces_ends_its_line_once(capfdbinary: pytest.CaptureFixture[bytes], pieces: list[bytes]) -> None:
    say_pieces(pieces)
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"".join(pieces).removesuffix(b"\n") + b"\n"


def test_all_decisions_of_an_approval_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of them may be of one second."""
    choice = Approval.Choice.Value("APPROVE")
    made = [Approval.Decision(caller=name, decision=choice, time=Timestamp(seconds=1)) for name in ("ann", "bob")]
    show_approval(Approval(id="e1.1", required=3, decisions=made))
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[-2:]] == ["ann", "bob"]


def test_states_are_coloured_and_other_text_is_not() -> None:
    assert coloured("SUCCESS") == "[green]SUCCESS[/green]"
    assert coloured("noop@1") == "noop@1"


# A terminal would clear itself, move, change its colour, write from right to left, and show a line that is none.
HOSTILE = "é\x1b[2J\r\b\x9b31m\x7f\u202e\u2066\u2028\nstate      SUCCESS"


def is_shown(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_control_characters_of_others_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_from("a", 0, 10, state="FAILED")
    run.error.type, run.error.message = "T", HOSTILE
    show_runs([run])
    shown = capsys.readouterr().out
    assert is_shown(shown)
    assert r"é\x1b[2J \x08\x9b31m\x7f\u202e\u2066 state SUCCESS" in shown
    say(HOSTILE, err=True)
    assert capsys.readouterr().err.split("\n")[1:] == ["state      SUCCESS", ""]


def test_json_says_the_same_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    struct = Struct()
    struct.update({HOSTILE: [HOSTILE]})
    print_json(struct)
    shown = capsys.readouterr().out
    assert is_shown(shown)
    assert json.loads(shown) == {HOSTILE: [HOSTILE]}
    assert is_shown(compact(struct))
    assert json.loads(compact(struct)) == {HOSTILE: [HOSTILE]}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_file_is_shown_to_a_person_and_given_to_a_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    say_file("a: \u202e\nb: 1\n")
    assert capsys.readouterr().out == ("a: \\u202e\nb: 1\n" if is_terminal else "a: \u202e\nb: 1\n")
