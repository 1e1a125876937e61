"""Page tokens: the place where a list continues, bound to the filter and order of that list.

A token is opaque to clients, but not secret or signed, because the caller's key decides at every page what may be read.
A token of another filter or order is refused, because it would silently skip rows.
"""

import base64
import binascii
import hashlib
import json
from typing import Final, NamedTuple

from windlass.definition.json_values import canonical

PAGE_SIZE_DEFAULT: Final = 50
PAGE_SIZE_MAX: Final = 1_000
_TOKEN_CHARACTERS_MAX: Final = 1_024


class BadToken(NamedTuple):
    message: str


def size_of(asked: int) -> int:
    return min(asked, PAGE_SIZE_MAX) if asked > 0 else PAGE_SIZE_DEFAULT


def token(after: str, *list_of: str) -> str:
    """A token that continues after the row with this key, in the list that `list_of` describes."""
    content = canonical([_mark(list_of), after])
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def read(given: str, *list_of: str) -> str | BadToken:
    """The key after which the list continues; empty at the beginning."""
    if not given:
        return ""
    malformed = BadToken("is not a page token of this service; send next_page_token unchanged")
    if len(given) > _TOKEN_CHARACTERS_MAX:
        return malformed
    try:
        content = json.loads(base64.urlsafe_b64decode(given.encode() + b"=" * (-len(given) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return malformed
    if not (isinstance(content, list) and len(content) == 2 and all(isinstance(part, str) for part in content)):
        return malformed
    if content[0] != _mark(list_of):
        return BadToken("is a token of another list, filter or order")
    return str(content[1])


def _mark(list_of: tuple[str, ...]) -> str:
    return hashlib.sha256(canonical(list(list_of))).hexdigest()[:16]
