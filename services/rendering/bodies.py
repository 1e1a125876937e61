"""Reads the body of an HTTP response: JSON as its value, anything else as text.

The body comes from a stranger, and what it takes to read it can be many times its size. The runner reads small bodies
itself and leaves large ones to a child (`renderer_process.py`).

Hazard: Python has charsets whose decoders take time that grows with the square of the text (punycode takes minutes for
a megabyte), and others that are no charsets of texts. Only those are known here whose decoders are tables or plain
loops; a text in any other is read as UTF-8.
"""

from __future__ import annotations

import contextlib
import re
from encodings.aliases import aliases
from typing import Any, Final

import orjson

from windlass.sdk import PermanentError
from windlass.sdk.encoding import look_into

# Larger ones are for the child.
SMALL_BYTES_MAX: Final = 64 * 1024
# What is longer is no content-type that anybody needs.
_CONTENT_TYPE_CHARACTERS_MAX: Final = 256
_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*["']?([\w.:+-]+)""", re.IGNORECASE | re.ASCII)
# By the names that Python gives its codecs.
_CHARSETS: Final = frozenset(
    {
        *("ascii", "utf_8", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "latin_1"),
        *(f"iso8859_{part}" for part in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)),
        *(f"cp{page}" for page in (437, 850, 866, 874, 932, 949, 950, *range(1250, 1259))),
        *("koi8_r", "koi8_u", "mac_roman", "mac_cyrillic", "tis_620"),
        *("big5", "big5hkscs", "euc_jp", "euc_kr", "gb18030", "gb2312", "gbk", "shift_jis"),
    }
)


def codec_of(content_type: str) -> str:
    """The codec for a text with this content-type."""
    found = _CHARSET.search(content_type[:_CONTENT_TYPE_CHARACTERS_MAX])
    name = found[1].lower().replace("-", "_") if found else "utf_8"
    codec = aliases.get(name, name)
    return codec if codec in _CHARSETS else "utf_8"


def body_of(raw: bytes, content_type: str) -> Any:
    if _is_json(content_type):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(raw)
    return raw.decode(codec_of(content_type), "replace")


def body_as_json(raw: bytes, content_type: str) -> bytes:
    """The body as JSON. Raises PermanentError for a body that is nested too deep for an output."""
    value = body_of(raw, content_type)
    if isinstance(value, str):
        return orjson.dumps(value)
    try:
        look_into([value])  # it is a member of the output, so it is one level further in
    except ValueError as fault:
        raise PermanentError(f"the body is no output: {fault}", type="OUTPUT_NOT_JSON") from None
    # It was valid as it came. To encode it again would take another hundred bytes for each of its values.
    return raw


def _is_json(content_type: str) -> bool:
    return content_type[:_CONTENT_TYPE_CHARACTERS_MAX].partition(";")[0].strip().lower().endswith("json")
