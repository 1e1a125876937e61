"""Expressions are found as the template engine finds them, whatever hides their ends, and long ones are not read."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from minijinja import Environment, TemplateError

from windlass.definition.expressions import (
    EXPRESSION_CHARACTERS_MAX,
    LONG_CHARACTERS_MAX,
    LONG_CHARACTERS_MIN,
    TEMPLATE_CHARACTERS_MAX,
    Allowance,
    spans,
    whole_expression,
)

ENGINE = Environment()
INSIDE = {
    "plain {{ a }} and {% if b %}": [" a ", " if b "],
    '{{ "}}" ~ a }}{{ b }}': [' "}}" ~ a ', " b "],
    "{{ 'it\\'s }}' }}": [" 'it\\'s }}' "],
    '{{ {"a": {"b": 1}} }}': [' {"a": {"b": 1}} '],
    "{% if '%}' in [a] %}": [" if '%}' in [a] "],
    "{{ a % b }}": [" a % b "],
    "{# {{ ' #}{{ a }}": [" a "],
    "{%- raw -%}{{ ' {% endraw %}{{ a }}": [" a "],
    "{{ a }}{# open": [" a "],
    "{{ a }}{% raw %}{{ b": [" a "],
    "{{ a + 'open": [" a + 'open"],
    "{{ a + (b }}": [" a + (b }}"],
    "{{ a + b": [" a + b"],
    "no braces": [],
}


@pytest.mark.parametrize("template", INSIDE)
def test_what_is_inside_braces_is_found(template: str) -> None:
    assert [template[start:stop] for start, stop in spans(template)] == INSIDE[template]


PIECES = st.sampled_from(
    [
        *("{{ ", " }}", "{% if ", " %}", "{% endif %}", "{#", "#}", "{% raw %}", "{%- endraw +%}", "-}}"),
        *('"', "'", '"}}"', "'%}'", '"\\""', "{# ' #}", '{% raw %}{{ " {% endraw %}'),
        *(' ~ {"b": {}}', "[1]", "(", ")", "{", "}", " ", " + 1", " ~ ''", "\\", "%"),
        *("{{ name }}", "{{ '{{' ~ name }}", '{{ {"a": {"b": name}} }}', "{% if name %}{% endif %}"),
    ]
)


# A name in a string is read by nobody.
STRING = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' """, re.VERBOSE | re.DOTALL)


@settings(max_examples=300)
@example('{{ "{{ name }}"}}"')
@given(st.lists(PIECES, max_size=8).map("".join))
def test_what_the_engine_reads_is_inside(template: str) -> None:
    try:
        names = ENGINE.undeclared_variables_in_str(template)
    except TemplateError:
        return
    inside = [template[start:stop] for start, stop in spans(template)]
    assert ("name" in names) == any(re.search(r"\bname\b", STRING.sub("", each)) for each in inside)


@pytest.mark.parametrize(
    ("template", "expression"),
    [
        (" {{ a }}\n", " a "),
        ('{{ {"a": {"b": {}}} }}', ' {"a": {"b": {}}} '),
        ('{{{"a":{}}}}', '{"a":{}}'),
        ("{{ '}}' ~ '{{' }}", " '}}' ~ '{{' "),
        ("{{-a+}}", "a"),
        ("{{ a }}{{ b }}", None),
        ("{{ a }} }}", None),
        ("{{ a }}{# b #}", None),
        ("{% raw %}{{ a }}{% endraw %}", None),
        ("no. {{ a }}", None),
        ("{{ a", None),
        ("{{}", None),
        ("", None),
    ],
)
def test_a_whole_expression_is_all_of_its_template(template: str, expression: str | None) -> None:
    assert whole_expression(template) == expression


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=6).map("".join))
def test_a_whole_expression_has_the_value_that_the_engine_renders(template: str) -> None:
    expression = whole_expression(template)
    try:
        rendered = ENGINE.render_str(template.strip(), name="n")
    except TemplateError:
        return
    if expression is not None:
        assert ENGINE.render_str("{{ x }}", x=ENGINE.eval_expr(expression, name="n")) == rendered


CHAIN = "+1" * (EXPRESSION_CHARACTERS_MAX // 2)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1" + CHAIN + " }}",
        "{{ 1" + CHAIN,
        '{{ "}}"' + CHAIN + " }}",
        '{{ {"a": {"b": 1}}' + CHAIN + " }}",
        '{# {{ " #}{{ a ~ "}}"' + CHAIN + " }}",
        '{% raw %}{{ " {% endraw %}{{ a ~ "}}"' + CHAIN + " }}",
        "{{ a }}" + "x" * TEMPLATE_CHARACTERS_MAX,
    ],
)
def test_what_is_too_long_is_told(template: str) -> None:
    assert Allowance().excess_of(template).startswith("at most ")


def test_long_text_around_short_expressions_is_none_of_it() -> None:
    allowance = Allowance()
    template = ("{{ input.a }} " + "it's said {# that's that #}" * 10) * 200
    assert [allowance.excess_of(template) for _ in range(100)] == [""] * 100


def test_long_expressions_of_a_definition_have_an_end_together() -> None:
    allowance, length = Allowance(), 2 * LONG_CHARACTERS_MIN
    template = "{{" + "1" * length + "}}"
    for _ in range(LONG_CHARACTERS_MAX // length):
        assert allowance.excess_of(template) == ""
    assert "in a definition" in allowance.excess_of(template)
    assert allowance.excess_of("{{" + "1" * LONG_CHARACTERS_MIN + "}}") == ""
