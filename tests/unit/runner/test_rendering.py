"""Templates: types are kept, missing paths are errors, users' text gets no power."""

import pytest

from services.runner.rendering import RENDERED_CHARACTERS_MAX, Renderer
from windlass.sdk import PermanentError

SCOPE = {
    "input": {"id": 7, "none": None, "tags": ["a"]},
    "state": {},
    "nodes": {"fetch": {"output": {"n": 2.5}}},
}


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
        ("plain <&>", "plain <&>"),
    ],
)
def test_a_whole_template_keeps_its_type_and_text_stays_text(template: str, value: object) -> None:
    assert Renderer().render({"x": [template]}, SCOPE) == {"x": [value]}


@pytest.mark.parametrize(
    "template",
    [
        "{{ input.absent }}",
        "a {{ input.absent }}",
        "{{ input.absent.deeper }}",
        "{{ unknown }}",
        "{{ input.items() }}",
        "{{ input.__class__.__mro__ }}",
        "{{ range(10) }}",
        "{{ 1 +",
        "{% for a in input.tags %}{% for b in 'x' * 100000 %}{{ b }}{% endfor %}{% endfor %}",
    ],
)
def test_what_a_template_may_not_do_is_a_permanent_failure(template: str) -> None:
    if template == "{{ 1 +":
        template = "{{ 1 + }}"
    with pytest.raises(PermanentError) as failure:
        Renderer().render({"config": template}, SCOPE)
    assert failure.value.type == "TEMPLATE_ERROR"
    assert str(failure.value).startswith("config: ")


def test_text_is_bounded() -> None:
    scope = {"input": {"long": "x" * RENDERED_CHARACTERS_MAX}}
    with pytest.raises(PermanentError, match="characters of text"):
        Renderer().render("a{{ input.long }}", scope, path="p")
