"""A journal that was stored once is read in the same way for ever (`tests/support/golden.py` says how it is stored)."""

import importlib
import inspect
import pkgutil
from typing import Any, get_args

import pytest

from services.coordinator import core
from services.coordinator.core import handlers
from services.coordinator.core.commands import Cancel
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.controls import CONTROLS
from services.coordinator.core.events import Event, ExecutionFinished
from services.coordinator.core.fold import fold
from services.coordinator.core.state import Execution
from services.coordinator.store.codec import unseal
from tests.support.golden import EVENTS, JOURNALS, known, plain, plain_rows, read_json, stored_journal
from windlass.definition.examination import examine

FOLDERS = sorted(JOURNALS.iterdir())
# All functions of all other modules of the core are rules.
BOOKKEEPING = {"fold", "state", "summary", "projection"}


def folded(folder, definition):
    journal = stored_journal(folder)
    events: Any = [stored.event for stored in journal]
    return fold(Execution(journal[0].execution_id, definition), events)


def definition_of(folder):
    document = read_json(folder / "definition.json")
    return compile_definition(document, examine(document).references)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_stored_journal_folds_to_the_rows_it_gave(folder):
    seqs = [stored.seq for stored in stored_journal(folder)]
    assert seqs == list(range(1, len(seqs) + 1))
    written = read_json(folder / "rows.json")
    assert known(plain_rows(folded(folder, definition_of(folder))), written) == written


def replace_rules(monkeypatch, rule):
    """Put this function in the place of every rule. Returns the names of the functions that were replaced."""
    prefix = f"{core.__name__}."
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(core.__path__, prefix)]
    replaced = set()
    for module in modules:
        for name, value in list(vars(module).items()):
            room, _, home = (getattr(value, "__module__", None) or "").partition(prefix)
            if inspect.isfunction(value) and not room and home.partition(".")[0] not in BOOKKEEPING:
                replaced.add(value.__name__)
                monkeypatch.setattr(module, name, rule)
    return replaced


def test_folding_judges_nothing(monkeypatch):
    definitions = [definition_of(folder) for folder in FOLDERS]

    def rule(*_):
        raise AssertionError("a rule was asked")

    assert {"judge", "join_verdict", "resolve", "advance"} <= replace_rules(monkeypatch, rule)
    with pytest.raises(AssertionError, match="a rule was asked"):
        handlers.handle(Execution("e", definitions[0]), Cancel(), 1)
    for folder, definition in zip(FOLDERS, definitions, strict=True):
        written = read_json(folder / "rows.json")
        assert known(plain_rows(folded(folder, definition)), written) == written


@pytest.mark.parametrize("path", sorted(EVENTS.iterdir()), ids=lambda path: path.stem)
def test_a_stored_event_says_what_it_said(path):
    written = read_json(path)
    (stored,) = unseal(bytes.fromhex(written["stored"]))
    assert known(plain(stored.event), written["fields"]) == written["fields"]


def test_every_event_and_every_control_node_has_been_stored():
    stored = {type(unseal(bytes.fromhex(read_json(path)["stored"]))[0].event) for path in EVENTS.iterdir()}
    in_journals = {type(each.event) for folder in FOLDERS for each in stored_journal(folder)}
    assert stored == in_journals == set(get_args(Event))
    definitions = [read_json(folder / "definition.json") for folder in FOLDERS]
    assert {node["module"] for document in definitions for node in document["nodes"]} >= set(CONTROLS)
    last = [stored_journal(folder)[-1].event for folder in FOLDERS]
    assert {type(event) for event in last} == {ExecutionFinished}, "the rows at the end show the most"
