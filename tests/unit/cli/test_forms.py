"""An answer is printed for people, as JSON, as YAML, or as the names of what it has."""

import json

import pytest
import typer
import yaml
from google.protobuf.struct_pb2 import Struct

from windlass.api.v1 import executions_pb2, resources_pb2, runs_pb2, workflows_pb2, workspaces_pb2
from windlass.cli.forms import OutputForm, chosen, show, show_line, show_plain
from windlass.cli.output import say

EXECUTIONS = [resources_pb2.Execution(id=f"e{number}", workflow="w") for number in (1, 2)]
LISTED = executions_pb2.ListExecutionsResponse(executions=EXECUTIONS)


def printed(message: object, form: OutputForm, capsys: pytest.CaptureFixture[str]) -> str:
    show(message, form, lambda _: say("for people"))
    return capsys.readouterr().out


def test_the_four_forms_of_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(LISTED, "table", capsys) == "for people\n"
    assert printed(LISTED, "name", capsys) == "e1\ne2\n"
    told = {"executions": [{"id": "e1", "workflow": "w"}, {"id": "e2", "workflow": "w"}]}
    assert json.loads(printed(LISTED, "json", capsys)) == told
    assert yaml.safe_load(printed(LISTED, "yaml", capsys)) == told


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (EXECUTIONS[0], "e1"),
        (workflows_pb2.ApplyWorkflowResponse(workflow=resources_pb2.Workflow(workflow="intake", version=3)), "intake"),
        (resources_pb2.WorkflowVersion(workflow="intake", version=3), "3"),
        (workspaces_pb2.CreateApiKeyResponse(api_key=workspaces_pb2.ApiKey(key_id="k1"), key="secret"), "k1"),
        (resources_pb2.Event(seq=7, type="RunLeased"), "7"),
        (executions_pb2.ListExecutionsResponse(), ""),
    ],
)
def test_each_thing_has_its_name(message: object, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(message, "name", capsys) == (f"{name}\n" if name else "")


def test_what_has_no_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, explanation = runs_pb2.GetRunInputsResponse(inputs=Struct()), resources_pb2.Explanation(text="e1 is over")
    for message in (inputs, explanation, workspaces_pb2.DeleteWorkspaceResponse()):
        with pytest.raises(typer.BadParameter):
            printed(message, "name", capsys)


def test_items_of_a_stream_can_be_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for each in EXECUTIONS:
        show_line(each, "json", say)
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["e1", "e2"]
    for each in EXECUTIONS:
        show_line(each, "yaml", say)
    assert [each["id"] for each in yaml.safe_load_all(capsys.readouterr().out)] == ["e1", "e2"]


@pytest.mark.parametrize("text", ["Grüße", "\x1b[2J", "\u202egnp.exe", "\x85", "a\nb: c", "- yes", "\u2028"])
def test_yaml_keeps_every_text_and_no_control_character(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_plain({"text": text}, "yaml")
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown) == {"text": text}
    assert all(each == "\n" or each.isprintable() for each in shown)


def test_json_is_short_for_its_form_and_no_other() -> None:
    assert (chosen(None, as_json=False), chosen(None, as_json=True), chosen("yaml", as_json=False)) == (
        "table",
        "json",
        "yaml",
    )
    with pytest.raises(typer.BadParameter):
        chosen("yaml", as_json=True)
