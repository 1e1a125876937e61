"""Every RPC of the public API is a verb of the command line, and the table of docs/command-line.md says which."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from windlass.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "command-line.md"
CLI = ROOT / "client" / "windlass" / "cli"
_ROW = re.compile(r"^\| (\w*) ?\| (\w+) \| (`windlass .*`) \|$", re.MULTILINE)
# Verbs without an RPC of their own.
LOCAL = {
    *("up", "down", "status", "serve", "migrate", "demo", "admin bootstrap", "admin verify", "conformance", "diff"),
    *("context add", "context use", "context list", "context remove"),
}


def rows() -> list[tuple[str, str, list[str]]]:
    """Each RPC of the page: its service, its name, and its verbs."""
    found, service = [], ""
    for name, method, verbs in _ROW.findall(PAGE.read_text()):
        service = name or service
        found.append((service, method, re.findall(r"`windlass ([a-z -]+)`", verbs)))
    return found


def served() -> set[tuple[str, str]]:
    """Each RPC of the descriptors."""
    files = [import_module(f"windlass.api.v1.{path.stem}_pb2") for path in _protos()]
    services = [service for each in files for service in each.DESCRIPTOR.services_by_name.values()]
    return {(service.name, method.name) for service in services for method in service.methods}


def _protos() -> list[Path]:
    return sorted((ROOT / "protos" / "windlass" / "api" / "v1").glob("*.proto"))


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, each in inner.items():
        yield from commands(each, (*words, name))


TREE = dict(commands(typer.main.get_command(app)))


def test_every_rpc_has_a_verb_and_every_verb_is_told() -> None:
    found = rows()
    assert {(service, method) for service, method, _ in found} == served()
    assert len(found) == len(served())
    assert {verb for _, _, verbs in found for verb in verbs} | LOCAL == set(TREE)


def test_the_command_line_calls_every_rpc() -> None:
    """A command makes the request of its RPC, or calls the method by its name."""
    text = "\n".join(path.read_text() for path in CLI.glob("*.py"))
    unused = [method for _, method in served() if not re.search(rf"\b(messages\.{method}Request|{method})\b", text)]
    assert unused == []


@pytest.mark.parametrize("verb", sorted(set(TREE) - LOCAL - {"export", "workspace delete"}))
def test_a_verb_prints_its_answer_in_every_form(verb: str) -> None:
    options = {name for each in TREE[verb].params for name in each.opts}
    assert {"-o", "--format", "--json"} <= options
