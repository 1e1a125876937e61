"""The help of a command with many options shows how it is typed, and what it shows can be typed."""

import shlex
from typing import Any

import pytest
import typer

from tests.unit.cli.test_verbs import TREE

# The ways to say which stack is meant, and in which form the answer is printed.
SHARED = {"home", "address", "key_file", "authority_file", "output_form", "as_json"}


def examples(command: Any) -> list[list[str]]:
    lines = [line.strip() for line in (command.help or "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("windlass ")]


def test_a_command_with_many_options_has_an_example() -> None:
    own = {name: {each.name for each in command.params} - SHARED for name, command in TREE.items()}
    assert [name for name, given in own.items() if len(given) > 2 and not examples(TREE[name])] == []


def parse(name: str, given: list[str]) -> None:
    """Unknown options, and missing values of options, are refused; files need not exist."""
    command = TREE[name]
    context = command.context_class(command, info_name=name, **command.context_settings)
    command.make_parser(context).parse_args(list(given))


@pytest.mark.parametrize("name", [name for name, command in TREE.items() if examples(command)])
def test_an_example_is_of_its_command_and_has_options_that_exist(name: str) -> None:
    """A pipe or a file that is written to ends what is parsed."""
    for words in examples(TREE[name]):
        own = [i for i in range(len(words)) if words[i : i + 1 + len(name.split())] == ["windlass", *name.split()]]
        assert own, words
        given = words[own[-1] + 1 + len(name.split()) :]
        parse(name, given[: given.index(">")] if ">" in given else given)


@pytest.mark.parametrize(
    ("given", "said"), [(["--no-such-option"], "No such option"), (["--limit"], "requires an argument")]
)
def test_an_example_with_an_option_that_does_not_fit_is_noticed(given: list[str], said: str) -> None:
    with pytest.raises(typer.TyperException, match=said):
        parse("list", given)
