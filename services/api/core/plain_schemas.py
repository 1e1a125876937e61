"""Which checks against a JSON Schema are so cheap that the process that serves everybody may do them.

A schema is plain when every value of an input meets exactly one of its subschemas, and no more is done there than to
look at the value once: there are no references, alternatives, patterns or sets, and nothing that compares numbers one
by one. A check then costs at most the number of values times the size of one subschema, hence at most the product of
both sizes in bytes. One such step was never seen to take more than 4 ns.
"""

from typing import Any, Final

# A schema of 4 KiB with an input of 4 KiB, or one of 512 bytes with 32 KiB.
PRODUCT_MAX: Final = 16 * 1024 * 1024
SCHEMA_BYTES_MAX: Final = 16 * 1024

_NOTES: Final = ("$schema", "$comment", "title", "description", "default", "examples", "deprecated")
_SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_PLAIN: Final = frozenset(("type", "required", "readOnly", "writeOnly", *_NOTES, *_SIZES, *_BOUNDS))


def is_plain(schema: Any) -> bool:
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(map(_is_plain_keyword, schema, schema.values()))


def _is_plain_keyword(keyword: str, value: Any) -> bool:
    match keyword:
        case "properties":
            return isinstance(value, dict) and all(map(is_plain, value.values()))
        case "items" | "additionalProperties":
            return is_plain(value)
        case "const":
            return isinstance(value, str | bool | None)
        case "enum":
            # Texts alone are kept in a table.
            return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        case _:
            return keyword in _PLAIN
