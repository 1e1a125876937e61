"""Which templates a runner resolves itself: only those that cannot grow."""

import pytest

from services.runner.core.plain import (
    EXPRESSION_CHARACTERS_MAX,
    YIELD_BYTES_MAX,
    is_plain_condition,
    is_plain_document,
    is_plain_expression,
    is_plain_template,
)


@pytest.mark.parametrize(
    "expression",
    [
        "input.id",
        " nodes.fetch.output['a b'][0].x ",
        'nodes["a"].output[-1]',
        "input.a == 1 and not (state.b >= 2.5 or input.c != 'x')",
        "input.a if input.b is defined else none",
        "input.a in input.tags",
        "input.a < 2 or input.b > -1",
        "input.a | default('none') | upper | trim",
        "input.a|d((input.b))",
        "input.tags | length > 3",
        "input | tojson",
        "(input.a)",
        "not(input.a)",
        "input.a == (input.b)",
    ],
)
def test_what_only_reads_is_plain(expression: str) -> None:
    assert is_plain_expression(expression)
    assert is_plain_template("{{" + expression + "}}")
    assert is_plain_template("a { b } {{ " + expression + " }}\n{{" + expression + "}}")


@pytest.mark.parametrize(
    "expression",
    [
        "'%0100000000000000d'|format(1)",
        "input.a | indent(100000000000000)",
        "input.tags | batch(100000000000000, 1)",
        "input.tags | slice(100000000000000)",
        "input | tojson(indent=100000000000000)",
        "input | tojson(100000000000000)",
        "input | tojson | tojson",
        "input.a ~ input.a",
        "input.a + input.a",
        "'a' * 100000",
        "2 ** 70",
        "input.a / 2",
        "input.a % 2",
        "input.a | replace('a', 'bb')",
        "input.tags | join(',')",
        "input.tags | list",
        "input.tags[1:]",
        "[input, input]",
        "[input.a]",
        "[[input.a]|string]|string",
        "input.a in [input.b]",
        "input.a if [input.b] else 1",
        "(input.a)[[input.b]]",
        "(input, input)",
        "{'a': input}",
        "dict(a=input)",
        "input.a()",
        "input['a']()",
        "(input.a)()",
        "'a'()",
        "default(input)",
        "input.a is divisibleby(2)",
        "input.a | default(range(10))",
        "input.a |",
        "input.a | 'upper'",
        "'unclosed",
        "'{{'",
        "'a\\'b'",
        "input.ü",
        " ",
        "input." + "a" * EXPRESSION_CHARACTERS_MAX,
    ],
)
def test_what_can_grow_or_is_not_known_is_not_plain(expression: str) -> None:
    assert not is_plain_expression(expression)
    assert not is_plain_template("{{" + expression + "}}")


@pytest.mark.parametrize(
    "template",
    [
        "{% set x = 1 %}",
        "{{ input.a }}{# a comment #}",
        "{{ input.a }} {{ '}}' }}",
        "{{ 'a }} b' }}",
        "{{ input.a",
        "{{{ input.a }}}",
        "{{- input.a ~ 'b' }}",
    ],
)
def test_statements_and_braces_inside_are_not_plain(template: str) -> None:
    assert not is_plain_template(template)


@pytest.mark.parametrize("form", ["%s", " {{ %s }} "])
def test_a_condition_is_an_expression_with_braces_or_without(form: str) -> None:
    assert is_plain_condition(form % "input.a > 5")
    assert not is_plain_condition(form % "input.a * 2 > 5")
    assert not is_plain_condition(form % "input.a }} {{ input.a")


def test_text_without_expressions_is_plain() -> None:
    assert is_plain_template("a {b} %} }} '")


def test_a_document_is_as_plain_as_all_its_texts() -> None:
    assert is_plain_document({"a": ["{{ input.a }}", 1, None, {"b": "text"}], "{{ 1 + 1 }}": True}, 10)
    assert not is_plain_document({"a": ["{{ input.a }}", {"b": "{{ input.a ~ 'b' }}"}]}, 10)


def test_many_templates_over_much_data_are_not_plain() -> None:
    """Each may yield all of it."""
    half = YIELD_BYTES_MAX // 2
    assert is_plain_document({"a": "{{ input }}{{ input }}"}, half)
    assert is_plain_document(["{{ input }}", "{{ input }}"], half)
    assert not is_plain_document(["{{ input }}", "{{ input }}{{ input }}"], half)
