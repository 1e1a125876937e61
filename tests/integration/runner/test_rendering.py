"""Templates keep types, a missing path is an error, and users' text gets no power, in the runner and in its child."""

import asyncio
import copy
import fcntl
import json
import os
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import pytest_asyncio

from services.rendering import Renderer, RendererProcess
from services.rendering.engine import RENDERED_CHARACTERS_MAX
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import Succeeded
from tests.support.probe import until
from tests.support.runner_bench import Bench, a_job
from tests.support.stack import is_alive
from windlass.sdk import Context, PermanentError, TransientError

SCOPE = {"input": {"id": 7, "none": None, "tags": ["a"]}, "state": {}, "nodes": {"fetch": {"output": {"n": 2.5}}}}


ROOT = Path(__file__).resolve().parents[3]

# In one step of the engine, or in few, each takes more memory or time than there is.
HOSTILE = [
    "{{ '%0100000000000000d'|format(1) }}",
    "{{ 'a'|indent(100000000000000, true) }}",
    "{{ [1]|batch(100000000000000, 1) }}",
    "{{ [1]|slice(100000000000000) }}",
    "{{ input|tojson(indent=100000000000000) }}",
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x~x %}" * 35 + "{{ x }}",
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x+x %}" * 35 + "{{ x }}",
    "{{ ('a'*100000)|replace('a', 'b'*100000) }}",
]


# Each of its steps is short, and they are few. All together they take minutes, however fast the machine is.
SLOW = "{% set l = input.long %}" + "{% set q = (l ~ l ~ l ~ l)|list|length %}" * 5_000


@pytest.fixture(scope="module")
def renderer_process() -> Iterator[RendererProcess]:
    made = RendererProcess()
    yield made
    made.close()


@pytest.fixture(params=["here", "renderer_process"])
def renderer(request: Any, renderer_process: RendererProcess) -> Renderer | RendererProcess:
    return Renderer() if request.param == "here" else renderer_process


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ input.id }}", 7),
        (" {{ nodes.fetch.output.n }} ", 2.5),
        ("{{ input.none }}", None),
        ("{{ input.tags }}", ["a"]),
        ("{{ nodes.fetch.output }}", {"n": 2.5}),
        ("no. {{ input.id }}", "no. 7"),
        ("{{ input.id }}{{ input.id }}", "77"),
        ("{{ input.id + 1 }}", 8),
        ("{{ nodes.fetch.output.n * 2 }}", 5),
        ("{{ nodes.fetch.output.n * 3 }}", 7.5),
        ("{{ input.tags|map('upper')|list }}", ["A"]),
        ("{{ {'a': input.none, 'ü': [true, 'x\ny']} }}", {"a": None, "ü": [True, "x\ny"]}),
        ('{{ {"a": {"b": input.id}} }}', {"a": {"b": 7}}),
        ('{{{"a":{"b":{}}}}}', {"a": {"b": {}}}),
        ("{{ '}}' if input.id > 9 else input.id }}", 7),
        ("{{- input.id -}}", 7),
        ("{{ -input.id }}", -7),
        ("{{ input.id }}{{ '}}' }}", "7}}"),
        ("{% if input.id > 3 %}{{ 'a' ~ input.id }}{% endif %}", "a7"),
        ("plain <&>", "plain <&>"),
        ("{{ 'a' if input.id > 9 }}.", "."),
    ],
)
def test_a_whole_template_keeps_its_type_and_text_stays_text(
    renderer: Renderer | RendererProcess, template: str, value: object
) -> None:
    resolved = renderer.render({"x": [template]}, SCOPE)
    assert resolved == {"x": [value]}
    assert type(resolved["x"][0]) is type(value)


VALUES = [True, False, None, 2.5, [1, "a"], {"k": [None, "ü\n"]}]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("template", "around"),
    [
        ("a {{ input.v }} b", "a {} b"),
        ("{{ 'a' ~ input.v }}", "a{}"),
        ("{{ input.v ~ input.v ~ 'b' }}", "{0}{0}b"),
        ("{{ 'a' ~ (1 ~ [input][0].v) if input.v is defined else 'x' ~ 1 }}", "a1{}"),
        ("{{ {'k': input.v}.k ~ ('x' if input.v is undefined) }}", "{}"),
        ("{{ input.v|string }}", "{}"),
        ("{{ [input.v]|map('string')|first }}", "{}"),
        ("{{ [input.v, 1]|join('; ') }}", "{}; 1"),
        ("{{ [input]|join(attribute='v') }}", "{}"),
        ("{{ input.v|pprint }}", "{}"),
        ("{{ '%s, %(b)s!'|replace(', %(b)s', '')|format(input.v) }}", "{}!"),
        ("{{ '%(b)s %(c)d'|format(b=input.v, c=[7][0]) }}", "{} 7"),
        ("{{ '%s%s%.1f'|format(input.v ~ 'a', 'b' if input.v is undefined, 1.25) }}", "{}a1.2"),
        ("{% for each in [input.v] %}{{ each }},{% endfor %}", "{},"),
        ("{% set v = input.v %}{{- v -}}{% if v is defined %}{{- ' ' ~ v -}}{% endif %}", "{0} {0}"),
        ("{% set v %}{{ input.v }}{% endset %}{{ v }}", "{}"),
    ],
)
def test_values_in_texts_have_the_form_of_json(
    renderer: Renderer | RendererProcess, template: str, around: str, value: object
) -> None:
    rendered = renderer.render({"x": [template]}, {"input": {"v": value}, "state": {}})
    assert rendered == {"x": [around.format(json.dumps(value, ensure_ascii=False))]}


METHODS = sorted(name for kind in (dict, list) for name in dir(kind) if not name.startswith("_"))


@pytest.mark.parametrize("name", METHODS)
def test_data_have_no_methods(renderer: Renderer | RendererProcess, name: str) -> None:
    """A name that an object or a list lacks is not there, also when Python has a method of that name."""
    paths = [f"input.{name}", f"input['{name}']", "input[state.name]", f"input.tags.{name}", f"input.o.{name}"]
    paths += [f"input|attr('{name}')", f"([input]|map(attribute='{name}')|first)", f"[input][0].{name}"]
    templates = [f"{{{{ {path}|default('none') }}}}" for path in paths]
    templates += [f"x {{{{ {path}|default('none') }}}}" for path in paths]
    templates += [f"{{% for o in [input] %}}{{{{ o.{name}|default('none') }}}}{{% endfor %}}"]
    scope = {"input": {"tags": ["a"], "o": {"k": 1}}, "state": {"name": name}}
    rendered = renderer.render({"x": templates}, scope)["x"]
    assert [text.removeprefix("x ") for text in rendered] == ["none"] * len(templates)
    with pytest.raises(PermanentError):
        renderer.render({"x": f"{{{{ input.{name} }}}}"}, scope)
    with_name = {"input": {name: {name: [1]}}, "state": {"name": name}}
    whole, computed = renderer.render({"x": [f"{{{{ input.{name} }}}}", "{{ input[state.name] }}"]}, with_name)["x"]
    assert (whole, computed) == ({name: [1]}, {name: [1]})
    assert type(computed) is dict
    assert type(computed[name]) is list
    items = renderer.render({"x": f"{{{{ input.{name}|items|first|last }}}}"}, with_name)
    assert items == {"x": [1]}


CALLS = [
    "{{ input.pop('id') }}",
    "a {{ input['pop'] ('id') }}",
    "{{ (input.pop)('id') }}",
    "{% set f = input.pop %}{{ f('id') }}",
    "{% for f in [input.clear] %}{{ f() }}{% endfor %}",
    "{{ dict(a=1) }}",
    "{{ cycler('a') }}",
    "{% for a in input.tags %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% macro m() %}{% endmacro %}",
    "{% call(x) m() %}{% endcall %}",
    "{%- if 'a'.upper() -%}{% endif %}",
]


@pytest.mark.parametrize("template", CALLS)
def test_templates_call_nothing(renderer: Renderer | RendererProcess, template: str) -> None:
    before = copy.deepcopy(SCOPE)
    with pytest.raises(PermanentError, match="is a call"):
        renderer.render({"config": template}, SCOPE)
    assert before == SCOPE


@pytest.mark.parametrize(
    "template",
    [
        "{{ input.absent ~ 'a' }}",
        "a {{ 'a' ~ input.absent ~ 'b' }}",
        "{{ input.absent|string }}",
        "a {{ input.absent|join }}",
        "{{ 'a'|join(input.none ~ input.absent) }}",
        "{{ '%s'|format(input.absent) }}",
        "{{ input.absent }}",
        "a {{ input.absent }}",
        "{{ input.absent.deeper }}",
        "{{ unknown }}",
        "{{ input.items() }}",
        "{{ input.__class__.__mro__ }}",
        "{{ range(10) }}",
        "{{ 1 + }}",
        "{% for a in input.tags %}{% for b in 'x' * 100000 %}{{ b }}{% endfor %}{% endfor %}",
    ],
)
def test_what_a_template_may_not_do_is_a_permanent_failure(renderer: Renderer | RendererProcess, template: str) -> None:
    with pytest.raises(PermanentError) as failure:
        renderer.render({"config": template}, SCOPE)
    assert failure.value.type == "TEMPLATE_ERROR"
    assert str(failure.value).startswith("config: ")


def test_text_is_bounded(renderer: Renderer | RendererProcess) -> None:
    scope = {"input": {"long": "x" * RENDERED_CHARACTERS_MAX}}
    with pytest.raises(PermanentError, match="characters of text"):
        renderer.render({"p": "a{{ input.long }}"}, scope)


@pytest.mark.parametrize(("expression", "value"), [("input.id > 5", True), ("2 ** 70", 2**70), ("1e400", float("inf"))])
def test_an_expression_has_the_value_of_its_type(
    renderer: Renderer | RendererProcess, expression: str, value: object
) -> None:
    assert renderer.evaluate(expression, SCOPE) == value


@pytest.mark.parametrize("template", ["{{ 2 ** 70 }}", "{{ {1: 2} }}", "{{ 1e400 }}"])
def test_the_child_tells_of_what_is_no_json(renderer_process: RendererProcess, template: str) -> None:
    with pytest.raises(PermanentError, match="config: the rendered value is not JSON") as failure:
        renderer_process.render({"config": {"a": template}}, SCOPE)
    assert failure.value.type == "TEMPLATE_ERROR"


@pytest.mark.parametrize("expression", ["input.absent", "{1: 2}"])
def test_an_expression_without_a_value_that_can_travel_is_a_failure(
    renderer_process: RendererProcess, expression: str
) -> None:
    with pytest.raises(PermanentError, match=r"^expression: ") as failure:
        renderer_process.evaluate(expression, SCOPE)
    assert failure.value.type == "TEMPLATE_ERROR"


@pytest_asyncio.fixture(loop_scope="session")
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    others = children()
    made = Bench(tmp_path)
    yield made
    await asyncio.to_thread(made.close)
    assert children() == others


def children() -> list[int]:
    """The children of this process that render."""
    found = psutil.Process().children(recursive=True)
    return [each.pid for each in found if "services.rendering" in each.cmdline()]


async def test_a_hostile_template_or_expression_ends_its_run_and_no_other(bench: Bench) -> None:
    jobs = [
        a_job("transform@1", number, inputs={"a": template}, has_templates=True)
        for number, template in enumerate(HOSTILE)
    ]
    jobs.append(a_job("condition@1", 90, config={"expression": "'%0100000000000000d'|format(1)"}))
    for number, job in enumerate(jobs):
        bench.worker.take([job])
        assert len(bench.desk.ended) == number, "the event loop has waited for it"
        outcome = (await bench.desk.until(number + 1))[-1].outcome
        assert isinstance(outcome, Failure), (job, outcome)
        assert (outcome.failure_class, outcome.type) == (FailureClass.PERMANENT, "TEMPLATE_ERROR"), job
    good = a_job("transform@1", 98, inputs={"a": "{{ input.id * 2 }}"}, has_templates=True)
    assert await bench.outcome(good) == Succeeded(b'{"a":14}')
    good = a_job("condition@1", 99, config={"expression": "input.id * 2 > 13"})
    assert await bench.outcome(good) == Succeeded(b'{"result":true}', "true")


async def test_plain_templates_start_no_child(bench: Bench) -> None:
    given = {"a": "{{ input.id + 1 }}", "b": "no. {{ input.id | default(1) }}", "c": "{{ 'no. ' ~ input.id }}"}
    job = a_job("transform@1", 1, inputs=given, has_templates=True)
    assert await bench.outcome(job) == Succeeded(orjson.dumps({"a": 8, "b": "no. 7", "c": "no. 7"}))
    job = a_job("condition@1", 2, config={"expression": "input.id + 1 > 7"})
    assert await bench.outcome(job) == Succeeded(b'{"result":true}', "true")
    assert bench.rendering.children.pids == []


async def test_many_copies_of_much_data_are_made_within_the_limits_of_the_child(bench: Bench) -> None:
    """Each of the templates is plain."""
    job = a_job(
        "transform@1",
        inputs={"a": ["{{ input.text }}"] * 2_000},
        execution_input={"text": "x" * 1_000_000},
        has_templates=True,
    )
    assert await bench.failure(job) == (FailureClass.PERMANENT, "TEMPLATE_ERROR")


async def test_a_child_that_is_killed_at_work_is_a_failure_that_may_be_tried_again(bench: Bench) -> None:
    def good(number: int) -> Any:
        return a_job("transform@1", number, inputs={"a": "{{ input.id * 2 }}"}, has_templates=True)

    await bench.outcome(good(1))
    (first,) = bench.rendering.children.pids
    child = psutil.Process(first)
    child.suspend()
    await until(lambda: child.status() == psutil.STATUS_STOPPED, 10, "the child to stand still")
    bench.worker.take([good(2)])
    await until(lambda: has_input(first), 10, "the request to be sent")
    child.kill()
    outcome = (await bench.desk.until(2))[-1].outcome
    assert isinstance(outcome, Failure)
    assert (outcome.failure_class, outcome.type) == (FailureClass.TRANSIENT, "RENDERER_LOST")
    assert await bench.outcome(good(3)) == Succeeded(b'{"a":14}')
    assert first not in children()
    assert set(bench.rendering.children.pids) <= set(children())


async def test_a_child_that_was_killed_while_idle_is_missed_by_nobody(bench: Bench) -> None:
    renderer = bench.rendering.children.of("default")
    assert await asyncio.to_thread(renderer.render, {"a": "{{ 1 + 1 }}"}, {}) == {"a": 2}
    (pid,) = bench.rendering.children.pids
    child = psutil.Process(pid)
    child.kill()
    await until(lambda: child.status() == psutil.STATUS_ZOMBIE, 10, "the child to end")
    assert await asyncio.to_thread(renderer.render, {"a": "{{ 1 + 2 }}"}, {}) == {"a": 3}


async def test_the_event_loop_never_waits_for_the_child(bench: Bench) -> None:
    with pytest.raises(PermanentError, match="to_thread") as refusal:
        bench.rendering.children.of("default").evaluate("[1, 2]", {})
    assert refusal.value.type == "BLOCKING_CALL"
    assert bench.rendering.children.pids == []


async def test_an_async_module_evaluates_what_computes_in_a_thread(bench: Bench) -> None:
    async def evaluates(ctx: Context, _inputs: Any, _config: Any) -> Any:
        return await asyncio.to_thread(ctx.evaluate, "input.id * 2")

    async def blocks(ctx: Context, _inputs: Any, _config: Any) -> Any:
        return ctx.evaluate("input.id * 2")

    bench.registry.declare("test.evaluates@1")(evaluates)
    bench.registry.declare("test.blocks@1")(blocks)
    assert await bench.outcome(a_job("test.evaluates@1", 1)) == Succeeded(b"14")
    assert await bench.failure(a_job("test.blocks@1", 2)) == (FailureClass.PERMANENT, "BLOCKING_CALL")


def has_input(pid: int) -> bool:
    """True when the child has not read everything that was sent to it."""
    pipe = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    finally:
        os.close(pipe)


@pytest.mark.timeout(600)  # the child is niced, and its 3 s of CPU time may take minutes on a machine under load
def test_a_template_that_takes_its_time_inside_filters_is_ended(renderer_process: RendererProcess) -> None:
    """Fuel counts steps, and not the time of each step."""
    with pytest.raises(PermanentError, match="too much time") as failure:
        renderer_process.render({"config": SLOW}, {"input": {"long": "a" * 1_000_000}})
    assert failure.value.type == "TEMPLATE_ERROR"


def test_a_child_that_is_kept_from_its_work_is_no_fault_of_the_template(
    renderer_process: RendererProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert renderer_process.render({"a": "{{ 1 + 1 }}"}, {}) == {"a": 2}
    assert renderer_process.pid is not None
    psutil.Process(renderer_process.pid).suspend()
    monkeypatch.setattr("services.rendering.renderer_process.SILENT_SECONDS_MAX", 0.0)
    with pytest.raises(TransientError) as failure:
        renderer_process.render({"a": "{{ 1 + 2 }}"}, {})
    assert failure.value.type == "RENDERER_LOST"
    monkeypatch.undo()
    assert renderer_process.render({"a": "{{ 1 + 2 }}"}, {}) == {"a": 3}


def test_a_closed_one_starts_no_other_child() -> None:
    closed = RendererProcess()
    assert closed.render({"a": "{{ 1 + 1 }}"}, {}) == {"a": 2}
    pid = closed.pid
    closed.close()
    assert pid not in children()
    with pytest.raises(TransientError):
        closed.render({"a": "{{ 1 + 1 }}"}, {})
    assert closed.pid is None


def child_of_one_that_is_killed() -> int:
    code = (
        "import time; from services.rendering import RendererProcess\n"
        "made = RendererProcess(); made.render({'a': '{{ 1 + 1 }}'}, {}); print(made.pid, flush=True); time.sleep(60)"
    )
    runner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    assert is_alive(pid)
    runner.kill()
    runner.communicate()
    return pid


async def test_the_child_of_a_runner_that_is_killed_ends() -> None:
    pid = child_of_one_that_is_killed()
    await until(lambda: not is_alive(pid), 10, "the child to end")
