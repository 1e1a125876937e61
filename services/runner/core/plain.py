"""Which templates are plain: the memory and time they take are in the order of the data they name.

A plain expression is made of names, attributes, subscripts, literals, comparisons, boolean words, arithmetic without
`*`, joins of two values (`+`, `~`) and filters that do not grow what they are given; it has one value, and no comma to
make many of it. Whatever is not known to be plain is not: statements, calls, other filters. An expression that the
engine would refuse may be called plain; refusing it costs nothing.

`-`, `/`, `//` and `%` take numbers alone, whose size is fixed. A join makes what it joins longer, but an expression
sets no variable: it holds the data once for each name in it and can double nothing. That is its weight. Neither `*` nor
`**` is plain: a text can be multiplied by any number.

A list is not plain either: its text escapes the text in it, so that each list around one around another doubles it.

Hazard: a brace inside an expression, also one inside a literal, could end it for one reader and not for the other; such
a template is not plain.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

# Reading a chain of operators takes the square of its length.
EXPRESSION_CHARACTERS_MAX: Final = 256
# All plain templates of a job together: the data there is, as many times as they may copy it.
COPIED_BYTES_MAX: Final = 64 * 1024 * 1024

_FILTERS: Final = frozenset(
    {
        "abs",
        "bool",
        "d",
        "default",
        "first",
        "float",
        "int",
        "last",
        "length",
        "lower",
        "round",
        "string",
        "tojson",
        "trim",
        "upper",
    }
)
# The only ones that are given something.
_CALLED: Final = frozenset({"d", "default"})
_JOINS: Final = frozenset({"+", "~"})
# What an operand comes after. Before a bracket the words are of the language: the bracket groups.
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
def weight_of_expression(text: str) -> int | None:
    """At most so many times it copies the data it names, the value included; None when it is not plain. Of what stands
    between two braces, or alone where an expression is asked for."""
    words = _words_of(text)
    if words is None:
        return None
    before, last = "", ""
    for word in words:
        if last == "|" and word not in _FILTERS:
            return None
        if word == "(" and not _may_open(before, last):
            return None
        if word == "[" and _begins_operand(last):
            return None
        before, last = last, word
    # Each escapes what the one before has escaped: a chain of them grows without end.
    if last == "|" or words.count("tojson") > 1:
        return None
    operands = 1 + sum(word in _JOINS for word in words)
    # Each step makes something of at most all operands together.
    return operands * (operands + words.count("|"))


def _words_of(text: str) -> list[str] | None:
    """None when there is a word that no plain expression has."""
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
    """A bracket that groups, or the one after `| default`."""
    return last in _CALLED if before == "|" else _begins_operand(last)


def _begins_operand(last: str) -> bool:
    """Whether a bracket after this word is no call and no subscript."""
    return last in _OPERATORS or last in {"", "(", "["}


def weight_of_template(text: str) -> int | None:
    """Of text around expressions; text without any is plain and weighs nothing."""
    if "{" not in text:
        return 0
    rest = _OUTPUT.sub("", text)
    if "{{" in rest or "{%" in rest or "{#" in rest:
        return None
    return _sum(weight_of_expression(expression) for expression in _OUTPUT.findall(text))


def weight_of_condition(text: str) -> int | None:
    """Of an expression that some people write with braces and some without. Its value goes nowhere."""
    bare = text.strip()
    if bare.startswith("{{") and bare.endswith("}}"):
        bare = bare[2:-2]
    weight = weight_of_expression(bare)
    return None if weight is None else weight - 1


def is_plain_document(document: Any, data_bytes: int) -> bool:
    """Of JSON data whose texts are templates, over so many bytes of data."""
    return _is_within(_sum(map(weight_of_template, texts_of(document))), data_bytes)


def are_plain_conditions(document: Any, data_bytes: int) -> bool:
    """Of JSON data whose texts are expressions, over so many bytes of data."""
    return _is_within(_sum(map(weight_of_condition, texts_of(document))), data_bytes)


def _sum(weights: Iterable[int | None]) -> int | None:
    total = 0
    for weight in weights:
        if weight is None:
            return None
        total += weight
    return total


def _is_within(weight: int | None, data_bytes: int) -> bool:
    return weight is not None and weight * data_bytes <= COPIED_BYTES_MAX


def texts_of(document: Any) -> Iterator[str]:
    """Every text in JSON data but the keys, in no order."""
    todo = [document]
    while todo:
        here = todo.pop()
        if isinstance(here, str):
            yield here
        elif isinstance(here, dict):
            todo.extend(here.values())
        elif isinstance(here, list):
            todo.extend(here)
