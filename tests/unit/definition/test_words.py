"""A call is found whatever it calls, and what only looks like a call is none."""

import pytest

from windlass.definition.words import WordRole, call_in, words

CALLS = {
    "{{ input.pop('x') }}": "input.pop(",
    "{{ input['pop'] ('x') }}": "input['pop'] (",
    "{% set f = input.pop %}{{ f('id') }}": "f(",
    "{{ (input.pop)('id') }}": "(input.pop)(",
    "{{ input.if('id') }}": "input.if(",
    "{{ dict(a=1) }}": "dict(",
    "{{ 'a'('b') }}": "'a'(",
    "{{ {'a': 1}('b') }}": "{'a': 1}(",
    "{{ (input|first).pop('b') }}": "(input|first).pop(",
    "{{ input.rows.0.pop(1) }}": "input.rows.0.pop(",
    "{{ 1.5e3(1) }}": "1.5e3(",
    "{{ ünï\n(1) }}": "ünï\n(",
    "text {%- for a in range(3) -%}{% endfor %}": "for a in range(",
    "{% do input.pop('id') %}": "do input.pop(",
    "{% macro m(a) %}{% endmacro %}": "macro",
    "{%+ call m() %}{% endcall %}": "call",
    "{{ input.a }}{{ loop.cycle('a', 'b') }}": "loop.cycle(",
    "{{ input." + "x" * 100 + "() }}": "x" * 59 + "(",
}


@pytest.mark.parametrize("template", CALLS)
def test_a_call_is_found(template: str) -> None:
    assert call_in(template) == CALLS[template]


@pytest.mark.parametrize(
    "template",
    [
        "{{ input|default(1)|map('upper')|join(', ') }}",
        "{{ input | a.b(1) }}",
        "{{ 3 is divisibleby(3) and 3 is not divisibleby (2) }}",
        "{{ input.a is in(input.b) }}",
        "{{ not(a) or (b) in (c) if (d) else(e) -(f) }}",
        "{% if(a) and (b) %}{% elif(c) %}{% endif %}",
        "{% filter replace('a', 'b') %}{% endfilter %}",
        "{% for (a, b) in input|items %}{% set (c, d) = (a, b) %}{% endfor %}",
        "{{ 'input.pop()' }} f(x) {# {{ f() }} #}{% raw %}{{ f() }}{% endraw %}",
        "{{ macro }}{{ call }}",
    ],
)
def test_brackets_that_call_nothing_are_no_call(template: str) -> None:
    assert call_in(template) == ""


def test_each_word_has_its_role() -> None:
    found = words("a.if|f.g(1)[0] is not t ~ -'x'")
    assert [(word.text, word.role) for word in found] == [
        ("a", WordRole.VALUE),
        (".", WordRole.OPERATOR),
        ("if", WordRole.ATTRIBUTE),
        ("|", WordRole.OPERATOR),
        ("f", WordRole.FILTER),
        (".", WordRole.OPERATOR),
        ("g", WordRole.FILTER),
        ("(", WordRole.ARGUMENTS),
        ("1", WordRole.VALUE),
        (")", WordRole.VALUE),
        ("[", WordRole.SUBSCRIPT),
        ("0", WordRole.VALUE),
        ("]", WordRole.VALUE),
        ("is", WordRole.OPERATOR),
        ("not", WordRole.OPERATOR),
        ("t", WordRole.FILTER),
        ("~", WordRole.OPERATOR),
        ("-", WordRole.OPERATOR),
        ("'x'", WordRole.LITERAL),
    ]
