"""A dead letter shows what its run worked on, however the run ended. The stack is its own: a runner is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from google.protobuf import json_format

from tests.e2e.test_dead_letters import DeadLetter, Letters
from tests.support.api import Client
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import dead_letters_pb2 as pb
from windlass.api.v1 import resources_pb2

Run = resources_pb2.Run
WAITS: dict[str, Any] = {
    "id": "a",
    "module": "test.waits@1",
    "inputs": {"n": "{{ input.n }}", "plain": "kept"},
    "config": {"twice": "{{ input.n * 2 }}"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(modules=[Path(__file__).with_name("node_modules.py")]) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def letters(stack: Stack) -> Letters:
    return Letters(stack, Client(stack))


def worked_on(letter: DeadLetter) -> tuple[Any, Any]:
    return json_format.MessageToDict(letter.inputs), json_format.MessageToDict(letter.config)


async def under_way(letters: Letters, execution_id: str, after: int = 0) -> int:
    """The number of the run that its runner has begun, which is later than this one."""

    async def begun() -> int | None:
        runs = await letters.client.runs_of(execution_id)
        return len(runs) if len(runs) > after and runs[-1].state == Run.RUNNING else None

    return await eventually(begun, 60.0, f"a run after {after} to begin")


async def quarantined(letters: Letters, run_id: str) -> DeadLetter:
    """The dead letter of a run that is set aside."""
    await letters.client.call(letters.stub.QuarantineRun, pb.QuarantineRunRequest(run_id=run_id))
    return await letters.get(run_id)


async def test_work_with_which_three_runners_died_shows_what_they_had(letters: Letters, stack: Stack) -> None:
    await letters.client.apply("deadly", [WAITS])
    execution = await letters.client.start("deadly", input={"n": 7})
    last = 0
    for _ in range(3):
        last = await under_way(letters, execution.id, last)
        await stack.ready_again("runner", 0, stack.kill("runner"))
    await letters.client.end_of(execution.id)
    letter = await letters.get((await letters.of(execution)).id)
    assert (letter.reason, letter.not_rendered) == (DeadLetter.POISON, "")
    assert worked_on(letter) == ({"n": 7, "plain": "kept"}, {"twice": 14})


async def test_a_run_that_was_set_aside_shows_what_it_had_and_what_was_laid_over_it(letters: Letters) -> None:
    await letters.client.apply("aside", [WAITS])
    execution = await letters.client.start("aside", input={"n": 1})
    number = await under_way(letters, execution.id)
    first = await quarantined(letters, f"{execution.id}.{number}")
    assert (first.reason, first.not_rendered) == (DeadLetter.MANUAL, "")
    assert worked_on(first) == ({"n": 1, "plain": "kept"}, {"twice": 2})
    await letters.requeue(first.id, inputOverrides={"n": 5})
    second = await quarantined(letters, f"{execution.id}.{await under_way(letters, execution.id, number)}")
    assert worked_on(second) == ({"n": 5, "plain": "kept"}, {"twice": 2})


async def test_control_nodes_show_what_was_rendered_for_them(letters: Letters) -> None:
    signal = {"signal": "{{ input.what }}-paid", "timeout": "100ms"}
    child = {"workflow": "refuses"}
    nodes = [
        {"id": "signal", "module": "wait_signal@1", "config": signal},
        {"id": "child", "module": "sub_workflow@1", "config": child, "inputs": {"n": "{{ input.n }}"}},
    ]
    await letters.client.apply("refuses", [{"id": "a", "module": "test.check@1", "inputs": {"n": "{{ input.n }}"}}])
    await letters.client.apply("controls", nodes)
    execution = await letters.client.run("controls", input={"what": "order", "n": -3})
    found = {each.node: each for each in (await letters.listed(f'execution_id = "{execution.id}"')).dead_letters}
    shown = {node: await letters.get(found[node].id) for node in ("signal", "child")}
    assert worked_on(shown["signal"]) == ({}, {"signal": "order-paid", "timeout": "100ms"})
    assert worked_on(shown["child"])[0] == {"n": -3}
    assert {letter.not_rendered for letter in shown.values()} == {""}


async def test_inputs_that_the_report_of_a_failure_cannot_carry_are_shown_all_the_same(letters: Letters) -> None:
    check = {"id": "a", "module": "test.check@1", "inputs": {"n": -1, "t": "{{ input.t }}"}}
    await letters.client.apply("large", [check])
    execution = await letters.client.run("large", input={"t": "x" * 100_000})
    letter = await letters.get(f"{execution.id}.1")
    assert (letter.reason, letter.not_rendered) == (DeadLetter.PERMANENT_ERROR, "")
    assert worked_on(letter) == ({"n": -1, "t": "x" * 100_000}, {})


async def test_templates_are_shown_with_the_reason_why_nothing_better_can_be(letters: Letters, stack: Stack) -> None:
    check = {"id": "a", "module": "test.check@1", "inputs": {"n": -1, "t": "{{ input.t }}"}}
    undo = {"module": "test.check@1", "inputs": {"n": "{{ nodes.a.output.n - 1 }}"}}
    nodes = [
        {"id": "a", "module": "test.check@1", "inputs": {"n": "{{ input.n }}"}, "compensate": undo},
        {"id": "b", "module": "fail@1", "config": {"type": "PERMANENT"}},
    ]
    await letters.client.apply("discreet", [check], recordInputs=False)
    await letters.client.apply("broken", [check])
    await letters.client.apply("undone", nodes, edges=[{"from": "a", "to": "b"}])
    await letters.client.apply("undone-discreetly", nodes, edges=[{"from": "a", "to": "b"}], recordInputs=False)

    async def shown(workflow: str, node: str, **given: Any) -> tuple[str, Any]:
        execution = await letters.client.run(workflow, input=given)
        found = (await letters.listed(f'execution_id = "{execution.id}" AND node = "{node}"')).dead_letters
        letter = await letters.get(found[0].id)
        return letter.not_rendered.partition(":")[0], worked_on(letter)[0]

    templates = {"n": -1, "t": "{{ input.t }}"}
    assert await shown("discreet", "a", t="4111") == ("INPUTS_NOT_RECORDED", templates)
    assert await shown("broken", "a") == ("INPUTS_NOT_RENDERED", templates)
    assert await shown("undone", "a$undo", n=0) == ("", {"n": -1})
    assert await shown("undone-discreetly", "a$undo", n=0) == ("INPUTS_NOT_RECORDED", undo["inputs"])
    secret = await letters.client.run("discreet", input={"t": "4111"})
    get = ("dead-letters", "get", f"{secret.id}.1", "--home", stack.options.home)
    printed = await asyncio.to_thread(windlass, *get)
    assert ("INPUTS_NOT_RECORDED" in printed.stdout, "4111" in printed.stdout) == (True, False), printed.stderr
