"""`windlass demo`: starts a stack on free ports, shows one example step by step, and removes everything again.

The demo uses only the public contract: a user can do the same with the commands that it names.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc

from deploy.local.plan import Options, on_free_ports
from deploy.local.supervisor import Supervisor
from windlass.cli import messages
from windlass.cli.connection import Api
from windlass.cli.events import events_of
from windlass.cli.invocation import program
from windlass.cli.local_stack import EXPECTED_ERRORS, errors_in, explain
from windlass.cli.output import say
from windlass.cli.render import cell, plain
from windlass.cli.runs import show_runs
from windlass.definition.parsing import Format, parse

DEFINITION = "demo.yaml"
ORDER: dict[str, Any] = {"id": "A-1047", "customer": "ada@example.org", "total": 249.5}


def demo() -> int:
    """Exit code 0 when the example succeeded."""
    place = Path(tempfile.mkdtemp(prefix="windlass-demo-"))
    supervisor = Supervisor(on_free_ports(Options(home=place), first=os.getpid()), _say)
    code = 1
    try:
        code = asyncio.run(_run(supervisor))
    except* EXPECTED_ERRORS as errors:
        for error in errors_in(errors):
            _say(explain(error, supervisor.home))
    except* asyncio.CancelledError:
        _say("interrupted")
    except* grpc.RpcError as errors:
        for error in errors_in(errors):
            _say(str(error))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if code == 0:
        _show_what_next()
    return code


async def _run(supervisor: Supervisor) -> int:
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    began = time.monotonic()
    _title("Starting PostgreSQL and the four services")
    async with supervisor.running():
        _say(f"up after {time.monotonic() - began:.1f} s")
        code = await asyncio.to_thread(_example, Api(home=supervisor.home.root))
        _title("Stopping the stack and removing its state")
    return code


def _example(api: Api) -> int:
    with contextlib.closing(api.channel):
        _apply(api)
        execution_id = _start(api)
        _watch(api, execution_id)
        return _account(api, execution_id)


def _apply(api: Api) -> None:
    text = (files("windlass.cli") / DEFINITION).read_text()
    definition = parse(text, Format.YAML).document
    _title(f"The workflow: {definition['description'][0].lower()}{definition['description'][1:]}")
    for node in definition["nodes"]:
        sources = [edge["from"] for edge in definition["edges"] if edge["to"] == node["id"]]
        say(f"  {node['id']:<12} {node['module']:<12} {'after ' + ', '.join(sources) if sources else 'first'}")
    answer = api.call(messages.ApplyWorkflowRequest(source=text))
    _say(f"applied as version {answer.workflow.version}")


def _start(api: Api) -> str:
    _title(f"Starting it with {json.dumps(ORDER)}")
    request = messages.StartExecutionRequest(workflow="order-intake", request_id="demo")
    request.input.update(ORDER)
    execution_id = str(api.call(request).execution.id)
    _say(f"execution {execution_id} is stored: no crash loses it from here on")
    return execution_id


def _watch(api: Api, execution_id: str) -> None:
    _title("Its journal, while it is written")
    first = 0
    for event in events_of(api, execution_id):
        first = first or event.time.ToMilliseconds()
        after = event.time.ToMilliseconds() - first
        say(f"  {event.seq:>3}  +{after:>5} ms  {event.type:<20} {event.node}".rstrip())


def _account(api: Api, execution_id: str) -> int:
    execution = api.call(messages.GetExecutionRequest(execution_id=execution_id)).execution
    runs = api.whole(messages.ListRunsRequest(execution_id=execution_id, page_size=1000)).runs
    _title("Every attempt at every node, and when it ran")
    show_runs(runs)
    state = cell(execution, "state")
    _title(f"The result: {state} after {cell(execution, 'metrics.duration')}")
    say(json.dumps(plain(execution.output), indent=2))
    _tell_what_happened(execution, runs)
    return 0 if state == "SUCCESS" else 1


def _tell_what_happened(execution: Any, runs: Any) -> None:
    retried = sorted({run.node for run in runs if run.attempt > 1})
    if retried:
        _say(f"{', '.join(retried)} failed once and was tried again after a pause, while the others went on")
    if execution.summary.skipped:
        _say(f"{', '.join(execution.summary.skipped)} was skipped: the branch went the other way")


def _show_what_next() -> None:
    command = program()
    definition = os.path.relpath(str(files("windlass.cli") / DEFINITION))
    _title("Next steps")
    say(
        f"""\
Start a stack that stays in one terminal. It keeps its state in .windlass/:

  {command} up

In another terminal, start the same order, then a small one, then one that does not fit the schema:

  {command} workflow apply {definition}
  {command} start order-intake --wait --input '{json.dumps(ORDER)}'
  {command} start order-intake --wait --input '{{"id": "A-1048", "customer": "bob@example.org", "total": 12}}'
  {command} start order-intake --input '{{"id": "A-1049"}}'
  {command} list

Workflows call public addresses only. `{command} up --allow-net 127.0.0.1` lets http.request@1 call this machine too.

Kill any of the four services at any time (`{command} status` shows their pids). Every execution still comes to its end.
"""
    )


def _title(text: str) -> None:
    say(f"\n{text}", bold=True)


def _say(text: str) -> None:
    say(f"  {text}")
