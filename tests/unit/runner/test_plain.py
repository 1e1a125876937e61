"""A runner itself resolves only the templates whose values cannot grow."""

import pytest

from services.runner.core.plain import (
    COPIED_BYTES_MAX,
    EXPRESSION_CHARACTERS_MAX,
    NOT_PLAIN,
    are_plain_conditions,
    is_plain_document,
    weight_of_condition,
    weight_of_document,
    weight_of_expression,
    weight_of_template,
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
        "input.a + 1",
        "'no. ' ~ input.a ~ '/' ~ input.b",
        "(input.a + input.b) / 2 - 1 > -(input.c % 7 // 2)",
        "input.a / 3 | round",
    ],
)
def test_what_reads_and_joins_is_plain(expression: str) -> None:
    weight = weight_of_expression(expression)
    assert weight < NOT_PLAIN
    assert weight_of_template("{{" + expression + "}}") == weight
    assert weight_of_template("a { b } {{ " + expression + " }}\n{{" + expression + "}}") == 2 * weight


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
        "input.a ~ input.a * 100000",
        "'a' * 100000",
        "2 ** 70",
        "input.a / (input.b, 2)",
        "input.a / 3 | round(2)",
        "input.a + [1]",
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
    assert weight_of_expression(expression) == NOT_PLAIN
    assert weight_of_template("{{" + expression + "}}") == NOT_PLAIN


@pytest.mark.parametrize(
    "template",
    [
        "{% set x = 1 %}",
        "{{ input.a }}{# a comment #}",
        "{{ input.a }} {{ '}}' }}",
        "{{ 'a }} b' }}",
        "{{ input.a",
        "{{{ input.a }}}",
        "{{- input.a * 2 }}",
    ],
)
def test_statements_and_braces_inside_are_not_plain(template: str) -> None:
    assert weight_of_template(template) == NOT_PLAIN


@pytest.mark.parametrize(
    ("expression", "weight"),
    [
        ("input.a", 1),
        ("input.a | upper | trim", 3),
        ("input.a + input.b", 4),
        ("input.a ~ ('|' + '~')", 9),
        ("(input.a + input.b) | upper", 6),
    ],
)
def test_each_step_may_copy_all_that_was_joined(expression: str, weight: int) -> None:
    assert weight_of_expression(expression) == weight


@pytest.mark.parametrize("form", ["%s", " {{ %s }} "])
def test_a_condition_is_an_expression_with_braces_or_without(form: str) -> None:
    assert weight_of_condition(form % "input.a > 5") == 0
    assert weight_of_condition(form % "input.a + 2 > 5") == 3
    assert weight_of_condition(form % "input.a * 2 > 5") == NOT_PLAIN
    assert weight_of_condition(form % "input.a }} {{ input.a") == NOT_PLAIN


def test_text_without_expressions_is_plain() -> None:
    assert weight_of_template("a {b} %} }} '") == 0


def test_a_document_is_as_plain_as_all_its_texts() -> None:
    assert is_plain_document(
        weight_of_document({"a": ["{{ input.a }}", 1, None, {"b": "text"}], "{{ 1 * 1 }}": True}), 10
    )
    assert not is_plain_document(weight_of_document({"a": ["{{ input.a }}", {"b": "{{ input.a * 2 }}"}]}), 10)
    assert not is_plain_document(weight_of_document({"a": "{{ 2 * 2 }}"}), 0)


def test_many_templates_over_much_data_are_not_plain() -> None:
    """Each may yield all of it."""
    half = COPIED_BYTES_MAX // 2
    assert is_plain_document(weight_of_document({"a": "{{ input }}{{ input }}"}), half)
    assert is_plain_document(weight_of_document(["{{ input }}", "{{ input }}"]), half)
    assert not is_plain_document(weight_of_document(["{{ input }}", "{{ input }}{{ input }}"]), half)


def test_joins_and_filters_over_much_data_are_not_plain() -> None:
    """Each may copy all of it."""
    half = COPIED_BYTES_MAX // 2
    assert is_plain_document(weight_of_document(["{{ input.a | upper }}"]), half)
    assert not is_plain_document(weight_of_document(["{{ input.a | upper | lower }}"]), half)
    assert not is_plain_document(weight_of_document(["{{ input.a + input.b }}"]), half)


def test_conditions_copy_what_they_compute_with_alone() -> None:
    half = COPIED_BYTES_MAX // 2
    assert are_plain_conditions([{"when": "input.a == input.b", "branch": "a"}] * 100, half)
    assert are_plain_conditions(["input.a | length > 3", "input.b | length > 3"], half)
    assert not are_plain_conditions(["input.a | length > 3"] * 3, half)
    assert not are_plain_conditions("input.a ~ input.b == 'ab'", half)
