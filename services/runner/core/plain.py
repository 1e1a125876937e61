"""Which templates are plain: the memory and time they take are in the order of the data they name.

A plain expression is made of names, attributes, subscripts, literals, comparisons, boolean words and filters that do
not grow what they are given; it has one value, and no comma to make many of it. Whatever is not known to be plain is
not: statements, calls, arithmetic, other filters. An expression that the engine would refuse may be called plain;
refusing it costs nothing.

A list is not plain either: its text escapes the text in it, so that each list around one around another doubles it.

Hazard: a brace inside an expression, also one inside a literal, could end it for one reader and not for the other; such
a template is not plain.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

# Reading a chain of operators takes the square of its length.
EXPRESSION_CHARACTERS_MAX: Final = 256
# All plain templates of a job together: each may yield all the data there is.
YIELD_BYTES_MAX: Final = 64 * 1024 * 1024

_FILTERS: Final = frozenset(
    {
        "bool",
        "d",
        "default",
        "first",
        "float",
        "int",
        "last",
        "length",
        "lower",
        "string",
        "tojson",
        "trim",
        "upper",
    }
)
# The only ones that are given something.
_CALLED: Final = frozenset({"d", "default"})
# Before a bracket these are words of the language: the bracket groups.
_OPERATORS: Final = frozenset({"and", "else", "if", "in", "not", "or"})
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<value>\d+(?:\.\d+)?|'[^'\\{}]*'|"[^"\\{}]*")|(?P<sign>[=!<>]=|[.\[\]()|<>-]))\s*""",
    re.ASCII,
)
_OUTPUT: Final = re.compile(r"(?<!\{)\{\{([^{}]*)\}\}")


@lru_cache(maxsize=1024)
def is_plain_expression(text: str) -> bool:
    """Of what stands between two braces, or alone where an expression is asked for."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        return False
    place, before, last, seen_tojson = 0, "", "", False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return False
        place = token.end()
        word = token[0].strip()
        if last == "|":
            # Each escapes what the one before has escaped: a chain of them grows without end.
            if word not in _FILTERS or (word == "tojson" and seen_tojson):
                return False
            seen_tojson = seen_tojson or word == "tojson"
        elif (word == "(" and not _may_open(before, last)) or (word == "[" and _begins_operand(last)):
            return False
        before, last = last, word
    return last != "|"


def _may_open(before: str, last: str) -> bool:
    """A bracket that groups, or the one after `| default`."""
    return last in _CALLED if before == "|" else _begins_operand(last)


def _begins_operand(last: str) -> bool:
    """Whether a bracket after this word is no call and no subscript."""
    return last in _OPERATORS or last in {"", "(", "[", "-", "==", "!=", "<", ">", "<=", ">="}


def is_plain_condition(text: str) -> bool:
    """Of an expression that some people write with braces and some without."""
    bare = text.strip()
    if bare.startswith("{{") and bare.endswith("}}"):
        bare = bare[2:-2]
    return is_plain_expression(bare)


def is_plain_template(text: str) -> bool:
    """Of text around expressions; text without any is plain."""
    if "{" not in text:
        return True
    rest = _OUTPUT.sub("", text)
    if "{{" in rest or "{%" in rest or "{#" in rest:
        return False
    return all(is_plain_expression(expression) for expression in _OUTPUT.findall(text))


def is_plain_document(document: Any, data_bytes: int) -> bool:
    """Of JSON data whose texts are templates, over so many bytes of data."""
    expressions = 0
    for text in texts_of(document):
        if not is_plain_template(text):
            return False
        expressions += text.count("{{")
    return expressions * data_bytes <= YIELD_BYTES_MAX


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
