"""Tells which templates are plain: the memory and time that they take are proportional to the data that they name.

A plain expression consists of names, attributes, subscripts, literals, comparisons, boolean words, arithmetic without
`*`, joins of two values (`+`, `~`) and filters whose result is not longer than their input. It has one value and no
comma. Everything else is not plain: statements, calls, other filters. An expression that the engine refuses may count
as plain, because refusing it costs nothing.

`-`, `/`, `//` and `%` take only numbers, whose size is fixed. A join makes a longer value, but an expression sets no
variable, so it holds the data at most once for each name in it. This number is its weight. `*` and `**` are not plain,
because text can be multiplied by any number.

A list is not plain: its text escapes the text in it, so that each further level of lists can double it.

Hazard: this reader and the engine could disagree on where an expression ends when there is a brace inside it, even in a
literal. Such a template is not plain.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from math import inf
from typing import Any, Final

# The weight of what is not plain. Its product with 0 is NaN, which is within no limit either.
NOT_PLAIN: Final = inf
# The time to read a chain of operators grows with the square of its length.
EXPRESSION_CHARACTERS_MAX: Final = 256
# The limit for the size of the data times the weight of all plain templates of a job. Parsed JSON takes up to thirty
# times its bytes, and a second for a few megabytes.
COPIED_BYTES_MAX: Final = 2 * 1024 * 1024
# The limit for the size of the data itself, which has to be parsed before anything can be read in it.
PARSED_BYTES_MAX: Final = 1024 * 1024

_OF_NUMBERS: Final = frozenset({"abs", "bool", "float", "int", "length", "round"})
_FILTERS: Final = _OF_NUMBERS | {"d", "default", "first", "last", "lower", "string", "tojson", "trim", "upper"}
# The only filters that take an argument.
_CALLED: Final = frozenset({"d", "default"})
_JOINS: Final = frozenset({"+", "~"})
# After one of these an operand begins, so that a bracket groups and is neither a call nor a subscript.
_OPERATORS: Final = frozenset(
    {"and", "else", "if", "in", "not", "or", "==", "!=", "<", ">", "<=", ">=", "+", "-", "~", "/", "//", "%"}
)
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<value>\d+(?:\.\d+)?|'[^'\\{}]*'|"[^"\\{}]*")"""
    r"""|(?P<sign>[=!<>]=|//|[.\[\]()|<>+~/%-]))\s*""",
    re.ASCII,
)
_OUTPUT: Final = re.compile(r"(?<!\{)\{\{([^{}]*)\}\}")


@lru_cache(maxsize=1024)
def weight_of_expression(text: str) -> float:
    """At most how many times the expression copies the data that it names, its value included.

    `text` is what stands between two braces, or a bare expression."""
    words = _words_of(text)
    if words is None:
        return NOT_PLAIN
    before, last = "", ""
    for word in words:
        if last == "|" and word not in _FILTERS:
            return NOT_PLAIN
        if word == "(" and not _may_open(before, last):
            return NOT_PLAIN
        if word == "[" and _begins_operand(last):
            return NOT_PLAIN
        before, last = last, word
    # Each tojson escapes the text of the one before it, so that a chain of them grows without end.
    if last == "|" or words.count("tojson") > 1:
        return NOT_PLAIN
    operands = 1 + sum(word in _JOINS for word in words)
    # The result of each step is at most as large as all operands together.
    return operands * (operands + words.count("|"))


def _words_of(text: str) -> list[str] | None:
    """The words of an expression; None when one of them is in no plain expression."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        return None
    words, place = [], 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return None
        words.append(token[0].strip())
        place = token.end()
    return words


def _may_open(before: str, last: str) -> bool:
    """True when a bracket here groups, or follows `| default`."""
    return last in _CALLED if before == "|" else _begins_operand(last)


def _begins_operand(last: str) -> bool:
    """True when a bracket after this word is no call and no subscript."""
    return last in _OPERATORS or last in {"", "(", "["}


def weight_of_template(text: str) -> float:
    """The weight of all expressions in the text together; 0 when there are none."""
    if "{" not in text:
        return 0
    rest = _OUTPUT.sub("", text)
    if "{{" in rest or "{%" in rest or "{#" in rest:
        return NOT_PLAIN
    return sum(map(weight_of_expression, _OUTPUT.findall(text)))


def weight_of_condition(text: str) -> float:
    """The weight of an expression, with or without braces, whose value is tested and not kept."""
    return weight_of_expression(without_braces(text)) - 1


def without_braces(expression: str) -> str:
    """The expression without the braces that people put around it by habit."""
    bare = expression.strip()
    return bare[2:-2] if len(bare) >= 4 and bare.startswith("{{") and bare.endswith("}}") else expression


def weight_of_document(document: Any) -> float:
    """The weight of the texts of this JSON, taken as templates; 0 when none of them is one."""
    return sum(map(weight_of_template, texts_of(document)))


def is_plain_document(weight: float, data_bytes: int) -> bool:
    """True when the templates of a document of this weight, which see so much data, are plain and light enough."""
    return weight == 0 or _is_light(weight, data_bytes)


def are_plain_conditions(document: Any, data_bytes: int) -> bool:
    """The same for the texts of this JSON, each of which is an expression."""
    weights = [weight_of_condition(text) for text in texts_of(document)]
    return not weights or _is_light(sum(weights), data_bytes)


def _is_light(weight: float, data_bytes: int) -> bool:
    return data_bytes <= PARSED_BYTES_MAX and weight * data_bytes <= COPIED_BYTES_MAX


def texts_of(document: Any) -> Iterator[str]:
    """Every text in JSON data except the keys, in any order."""
    todo = [document]
    while todo:
        here = todo.pop()
        if isinstance(here, str):
            yield here
        elif isinstance(here, dict):
            todo.extend(here.values())
        elif isinstance(here, list):
            todo.extend(here)
