"""A context names a stack; a command that says itself which stack it means does not look at it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import windlass


class Person:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def types(self, *words: object, **environment: Any) -> tuple[int, str]:
        answer = windlass(*words, XDG_CONFIG_HOME=self.folder, **environment)
        assert "Traceback" not in answer.stderr
        return answer.returncode, answer.stdout + answer.stderr


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def test_a_command_speaks_to_the_stack_of_the_context_in_use(person: Person, tmp_path: Path) -> None:
    assert person.types("context", "add", "mine", "--home", tmp_path / "mine") == (0, "mine is kept, and in use\n")
    assert person.types("context", "add", "yours", "--home", tmp_path / "yours") == (0, "yours is kept\n")
    code, said = person.types("list")
    assert (code, f"no stack runs in {tmp_path / 'mine'}" in said) == (1, True)
    assert person.types("context", "use", "yours")[0] == 0
    assert f"no stack runs in {tmp_path / 'yours'}" in person.types("list")[1]
    assert person.types("context", "list", "-o", "name") == (0, "mine\nyours\n")
    assert json.loads(person.types("context", "list", "--json")[1])["current"] == "yours"
    starred = [line for line in person.types("context", "list")[1].splitlines() if line.startswith("*")]
    assert [line.split()[1] for line in starred] == ["yours"]
    assert person.types("context", "use")[0] == 0
    assert "no stack runs in" in (said := person.types("list")[1])
    assert "yours" not in said


def test_what_was_typed_and_the_environment_win(person: Person, tmp_path: Path) -> None:
    person.types("context", "add", "mine", "--home", tmp_path / "mine")
    for answer in (
        person.types("list", "--home", tmp_path / "typed"),
        person.types("list", WINDLASS_HOME=tmp_path / "typed"),
    ):
        assert f"no stack runs in {tmp_path / 'typed'}" in answer[1]
    away = person.types("list", "--address", "127.0.0.1:1", WINDLASS_KEY="k")
    assert "no api answers at 127.0.0.1:1" in away[1]


def test_a_context_of_an_address_has_its_key_file_unless_a_key_is_given(person: Person, tmp_path: Path) -> None:
    key_file = tmp_path / "its.key"
    person.types("context", "add", "far", "--address", "127.0.0.1:1", "--key-file", key_file)
    assert f"cannot read the key in {key_file}" in person.types("list")[1]
    assert "no api answers at 127.0.0.1:1" in person.types("list", WINDLASS_KEY="k")[1]
    key_file.write_text("secret-of-the-key")
    assert "no api answers at 127.0.0.1:1" in person.types("list")[1]
    kept = (person.folder / "windlass" / "contexts.json").read_text()
    assert str(key_file) in kept
    assert "secret-of-the-key" not in kept


def test_a_context_that_is_forgotten_is_used_no_more(person: Person, tmp_path: Path) -> None:
    person.types("context", "add", "mine", "--home", tmp_path / "mine")
    assert person.types("context", "remove", "mine") == (0, "mine is forgotten\n")
    assert str(tmp_path / "mine") not in person.types("list")[1]
    assert person.types("context", "list", "-o", "name") == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("context", "use", "nobody"),
        ("context", "remove", "nobody"),
        ("context", "add", "x"),
        ("context", "add", "x", "--home", "a", "--address", "b:1"),
        ("context", "add", "x", "--address", "b:1"),
        ("context", "add", "x", "--address", "b", "--key-file", "k"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(person: Person, words: tuple[str, ...]) -> None:
    assert person.types(*words)[0] == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"current": ""}', '{"current": "", "contexts": 7}'])
def test_a_damaged_file_is_named(person: Person, text: str) -> None:
    file = person.folder / "windlass" / "contexts.json"
    file.parent.mkdir()
    file.write_text(text)
    code, said = person.types("list")
    assert (code, "contexts.json" in said) == (2, True)
