"""The forms in which a command prints its answer: for people, as JSON or YAML, or only the names of things."""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

import typer

from windlass.cli import render
from windlass.cli.output import has_controls, say, visible, visible_json

OutputForm = Literal["table", "json", "yaml", "name"]
FormOption = Annotated[
    OutputForm | None,
    typer.Option("-o", "--format", help="The form of the answer; name prints only the ids or names, one a line."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
# Shows a message to people.
Show = Callable[[Any], Any]

# The field that names a message. Any other message is named by its first field.
_NAMES: Final = {"WorkflowVersion": "version"}
_NAMELESS: Final = {"Explanation"}


def chosen(form: OutputForm | None, *, as_json: bool) -> OutputForm:
    if as_json and form not in (None, "json"):
        raise typer.BadParameter(f"this is not -o {form}", param_hint="--json")
    return "json" if as_json else form or "table"


def show(message: Any, form: OutputForm, for_people: Show) -> None:
    """Print a message, or the answer of a call, in this form."""
    match form:
        case "table":
            for_people(message)
        case "name":
            for name in _names_of(message):
                say(visible(name))
        case _:
            show_plain(render.plain(message), form)


def show_line(message: Any, form: OutputForm, for_people: Show) -> None:
    """Print one message of many as soon as it is known: JSON on one line, or a YAML document."""
    if form == "json":
        say(render.compact(message))
        return
    if form == "yaml":
        say("---")
    show(message, form, for_people)


def show_plain(value: Any, form: OutputForm) -> None:
    """Print JSON values as JSON or YAML."""
    if form == "yaml":
        say(_yaml(value))
    else:
        say(visible_json(json.dumps(value, indent=1, ensure_ascii=False)))


def nameless() -> typer.BadParameter:
    """The fault of whoever asks for the names of what has none."""
    return typer.BadParameter("this answer has no name; take table, json or yaml", param_hint="-o")


def _yaml(value: Any) -> str:
    import yaml

    text = yaml.safe_dump(value, allow_unicode=True, sort_keys=False)
    if has_controls(text):
        # Without this, PyYAML leaves marks as they are that change the direction of writing.
        text = yaml.safe_dump(value, sort_keys=False)
    return text.removesuffix("\n")


def _names_of(message: Any) -> Iterator[str]:
    kind = message.DESCRIPTOR
    first = kind.fields[0] if kind.fields and kind.name not in _NAMELESS else None
    if first is None or (first.message_type is not None and first.message_type.GetOptions().map_entry):
        raise nameless()
    if first.message_type is None:
        yield render.cell(message, _NAMES.get(kind.name, first.name))
        return
    found = getattr(message, first.name)
    for each in found if first.is_repeated else [found]:
        yield from _names_of(each)
